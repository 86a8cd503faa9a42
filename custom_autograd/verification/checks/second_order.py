"""The derivative of the backward agrees with finite differences of it, in reverse mode and in forward mode."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call import numbers_like
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    refusal_or_raise,
    skipped,
)
from custom_autograd.verification.harness.causes import find_cause, find_uniform_cause
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    TensorsFunction,
    cotangents_like,
    function_of,
    gradients,
    require_gradient,
    require_tangents,
    signed_like,
    tangent_of,
    vector_jacobian,
    with_derivatives,
)
from custom_autograd.verification.harness.numerical import Precision, differences, has_kink, precision_of
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.wrong_gradients import (
    JacobianEntry,
    OfInputs,
    chosen_subsets,
    find_worst_entry,
    find_wrong_direction,
)


class SecondOrder(OfInputs):
    """torch.autograd.gradgradcheck for all inputs, and for each subset of them that gives other second derivatives."""

    name = "second_order"
    code = "G09"
    group = "derivatives"
    needs = ("gradcheck", "linearity")
    purpose = "second derivatives are right, or the op reports that it has none"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per subset; a backward that says it cannot be differentiated is honest, and skipped."""
        function = with_derivatives(function_of(target, sample))
        require_gradient(function(*function.inputs))
        if not all(bool(torch.isfinite(y).all()) for y in function(*function.inputs)):
            raise NothingToCheckError("a result is not finite here")
        precision = precision_of(function, function.inputs)
        for chosen in chosen_subsets(function, self.only):
            is_known = self.only is None and len(chosen) < len(function.positions) and _is_as_of_all(function, chosen)
            finding = PASSED if is_known else _check(function.restricted_to(chosen), precision)
            yield finding
            if finding is not PASSED:
                return


def _is_as_of_all(function: TensorFunction, chosen: Sequence[int]) -> bool:
    """Return True if nothing changes where only some inputs need a gradient: gradgradcheck has passed all of them."""
    part = function.restricted_to(chosen)
    try:
        cotangents = tuple(u.requires_grad_() for u in signed_like(function(*function.inputs)))
        found = _second(part, range(len(chosen)), cotangents)
        return find_difference(found, _second(function, chosen, cotangents)) is None
    except (RuntimeError, TypeError):  # gradgradcheck tells
        return False


def _second(function: TensorFunction, chosen: Sequence[int], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return how the gradients of the chosen inputs change, along a direction, with those and with cotangents."""
    inputs = function.inputs
    grads = gradients(function(*inputs), inputs, cotangents, create_graph=True)
    some = [grads[i] for i in chosen]
    return gradients(some, [*(inputs[i] for i in chosen), *cotangents], [numbers_like(g, "second") for g in some])


def _check(function: TensorFunction, precision: Precision) -> Finding:
    names = ", ".join(f"'{name}'" for name in function.names)
    inputs = function.inputs
    outputs = [output for output in function(*inputs) if output.requires_grad]
    if not outputs:
        return PASSED
    cotangents = tuple(u.requires_grad_() for u in signed_like(outputs))
    size = sum(value.numel() for value in (*inputs, *cotangents))
    try:
        _reach_every_node(outputs, inputs, cotangents)
        gradgradcheck(
            lambda *tensors: tuple(y for y in function(*tensors) if y.requires_grad),
            inputs,
            cotangents,
            eps=precision.step,
            atol=10 * precision.absolute,
            rtol=10 * precision.relative,
            check_undefined_grad=False,
            fast_mode=size > 48,
        )
    except GradcheckError as error:
        if has_kink(function, precision):
            return skipped(f"there is no derivative here along {names}: the slopes on both sides differ")
        return _explained(function, cotangents, precision, str(error))
    except (RuntimeError, TypeError) as error:
        refusal = refusal_or_raise(error, is_optional=True)
        return skipped(f"the op has no second derivative and raises: {refusal}")
    return PASSED


def _reach_every_node(outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> None:
    """Run a second backward; what it raises leaves.

    gradgradcheck asks for the gradients of chosen tensors, and then the engine never reaches the node by which
    torch.autograd.function.once_differentiable refuses: it sees zeros. A whole backward reaches it.
    """
    able = [grad for grad in gradients(outputs, inputs, cotangents, create_graph=True) if grad.requires_grad]
    if able:
        torch.autograd.backward(able, [torch.ones_like(grad) for grad in able])


def _explained(function: TensorFunction, cotangents: Sequence[Tensor], precision: Precision, text: str) -> Finding:
    """Return the failure with the entry that is most wrong, or, of many, a direction that is wrong."""
    problem = f"the second derivative by {', '.join(repr(name) for name in function.names)} is wrong"
    points = [x.detach() for x in (*function.inputs, *cotangents)]
    pairs = zip(function.output_names, function(*function.inputs), strict=True)
    incoming = [f"incoming grad of {name}".replace("'", "") for name, output in pairs if output.requires_grad]
    names, backward = [*function.names, *incoming], _backward_of(function)
    if sum(x.numel() for x in points) <= MOST_EXPLAINED:
        outputs = [f"grad of {name}" for name in function.names]
        entry = find_worst_entry(backward, points, precision.step, names=names, outputs=outputs)
    else:
        sent = signed_like(backward(*points))
        entry = find_wrong_direction(backward, points, sent, precision, names=names, outputs="the gradients")
    if entry is None or entry.size <= precision.absolute:
        return failed(f"{problem}: {_shortened(text)}")
    return failed(f"{problem}: {entry.text}", cause=_cause(entry, function.names))


def _backward_of(function: TensorFunction) -> TensorsFunction:
    """Return the gradients of a function, as a function of its inputs and of the cotangents."""
    count = len(function.names)

    def backward(*tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in tensors[:count]]
            outputs = [output for output in function(*inputs) if output.requires_grad]
            return gradients(outputs, inputs, tensors[count:], create_graph=True)

    return backward


def _cause(entry: JacobianEntry, names: Sequence[str]) -> str:
    """Return why a second derivative is wrong, probably: a term that autograd does not see is missing from it."""
    if bool(entry.found.any()):
        return find_uniform_cause(entry.found, entry.expected, relative=1e-4)
    if entry.input >= len(names):
        return "the backward detaches its incoming gradient"
    return (
        f"what the backward computes with depends on '{names[entry.input]}', but is disconnected from it: a saved "
        "tensor is detached, or was computed in the forward and is neither an input nor an output"
    )


def _shortened(text: str) -> str:
    first = text.strip().splitlines()[0].rstrip(",")
    if "expected to be zero" in text or "not require grad" in text or "numerical gradient" in text.lower():
        return f"the backward depends on what it was saved from, but is disconnected from it ({first})"
    return first


MOST_EXPLAINED = 256
"""Elements of all inputs and cotangents up to which each one is moved, to say what is wrong."""


class ForwardOverReverse(Check):
    """The tangents of the gradients along one direction of all inputs together."""

    name = "forward_over_reverse"
    code = "T05"
    group = "derivatives"
    needs = ("gradcheck", "second_order", "forward_mode")
    purpose = "forward mode through the backward is right, or the op reports that it has none"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per input."""
        function = with_derivatives(function_of(target, sample))
        require_tangents(function)
        precision = precision_of(function, function.inputs)
        outputs = function(*function.inputs)
        require_gradient(outputs)
        cotangents = cotangents_like(outputs)
        directions = signed_like(function.inputs)
        try:
            found = _tangents(function, cotangents, directions)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            refusal = refusal_or_raise(error, is_optional=True)
            yield skipped(f"forward mode through the backward is refused: {refusal}")
            return
        if has_kink(function, precision):
            raise NothingToCheckError("there is no second derivative here: the slopes on both sides differ")

        def backward(*inputs: Tensor) -> tuple[Tensor, ...]:
            return vector_jacobian(function, inputs, cotangents)

        expected = differences(backward, function.inputs, directions, precision.step)
        for name, one, other in zip(function.names, found, expected, strict=True):
            yield _compare(name, one, other, precision)


def _tangents(
    function: TensorFunction, cotangents: Sequence[Tensor], directions: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    with forward_ad.dual_level():
        pairs = zip(function.inputs, directions, strict=True)
        duals = [forward_ad.make_dual(x.detach().requires_grad_(), v) for x, v in pairs]
        outputs = function(*duals)
        grads = gradients(outputs, duals, cotangents, create_graph=True)
        return tuple(tangent_of(grad) for grad in grads)


def _compare(name: str, found: Tensor, expected: Tensor, precision: Precision) -> Finding:
    if not expected.numel() or not bool(expected.isfinite().all()):
        return PASSED
    bound = 10 * (precision.absolute + precision.relative * float(expected.abs().max()))
    error = (found - expected).abs()
    if bool((error <= bound).all()):
        return PASSED
    position = int(error.argmax())
    one, other = found.flatten()[position].item(), expected.flatten()[position].item()
    text = f"the tangent of the gradient of '{name}', element {position}, is {one:.6g}, expected {other:.6g}"
    return failed(f"{text} by finite differences of the backward", cause=find_cause(found, expected, relative=1e-4))
