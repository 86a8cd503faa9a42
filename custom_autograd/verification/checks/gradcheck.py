"""The backward agrees with finite differences, whichever inputs need a gradient, and none is silently zero."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.execution.plan import plan_of
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    refusal_or_raise,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference, judged
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    cotangents_like,
    explain,
    find_written_gradient,
    function_of,
    gradients,
    signed_like,
    surrogates_of,
    vector_jacobian,
    without,
)
from custom_autograd.verification.harness.numerical import FLOAT64, Precision, call_nearby, hidden_noise, precision_of
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import subsets
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.wrong_gradients import (
    OfInputs,
    chosen_subsets,
    find_growth,
    find_worst_entry,
    find_wrong_direction,
)

MOST_EXPLAINED = 1000
"""Elements of all inputs up to which every element is looked at, to say what is wrong."""


class Gradcheck(OfInputs):
    """First derivatives: torch.autograd.gradcheck for all inputs together, the same gradients for every subset."""

    name = "gradcheck"
    code = "G03"
    group = "derivatives"
    is_quick = True
    purpose = "the backward agrees with finite differences, whichever inputs need a gradient"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Check visible outputs first, then hidden ones, where a gradient through them is defined at all."""
        yield from _check(self._narrowed(function_of(target, sample)), has_subsets=self.only is None)
        if target.hidden and not _is_once_differentiable(target):
            function = self._narrowed(function_of(target, sample, is_full=True))
            yield from _check_hidden(function, has_subsets=self.only is None)

    def ends_others(self, message: str) -> bool:
        """Return False for noise alone, with which the gradients agree with finite differences."""
        return not message.startswith(NOISY) or "\n" in message

    def _narrowed(self, function: TensorFunction) -> TensorFunction:
        return function.restricted_to(next(chosen_subsets(function, self.only)))


def _check(function: TensorFunction, *, has_subsets: bool) -> Iterator[Finding]:
    inputs = function.inputs
    is_whole = all(output.requires_grad for output in function(*inputs))
    disconnected = [] if is_whole else find_disconnected(function)
    if disconnected:
        yield failed(disconnected[0])
        return
    if not any(output.requires_grad for output in function(*inputs)):
        raise NothingToCheckError("no output depends on the inputs that can have a gradient")
    if not _is_finite_nearby(function, inputs):
        raise NothingToCheckError("a result here or nearby is not finite")
    try:
        precision = precision_of(function, inputs)
    except NothingToCheckError:
        yield from _check_noise(function, inputs)
        raise
    if precision != FLOAT64:
        yield from _check_noise(function, inputs)
    surrogates, finding = surrogates_of(function), PASSED
    if surrogates:
        yield skipped(explain(function, surrogates))
    if len(surrogates) < len(inputs):
        part = without(function, surrogates)
        finding = _compare_with_differences(part, part.inputs, precision)
        yield finding
    if finding is PASSED:
        yield from _check_subsets(function) if has_subsets else ()
        yield _check_batched(function, inputs, precision)


def _is_finite_nearby(function: TensorFunction, inputs: Sequence[Tensor]) -> bool:
    with torch.no_grad():
        here = function(*(x.detach() for x in inputs))
    moved = [here, *(call_nearby(function, functools.partial(torch.full_like, fill_value=sign)) for sign in (-1, 1))]
    return all(bool(torch.isfinite(y).all()) for outputs in moved for y in outputs)


def _is_once_differentiable(target: Target) -> bool:
    """Return True if a gradient through hidden outputs, which only a second derivative has, is refused."""
    record = record_of(target)
    return record is not None and plan_of(record).once_differentiable is not None


def _check_hidden(function: TensorFunction, *, has_subsets: bool) -> Iterator[Finding]:
    try:
        yield from _check(function, has_subsets=has_subsets)
    except RuntimeError as error:
        refusal = refusal_or_raise(error)
        yield skipped(f"no gradient through hidden outputs: {refusal}")


def find_disconnected(function: TensorFunction) -> list[str]:
    """Return what is wrong with outputs that change with the inputs but carry no gradient."""
    outputs, moved = function(*function.inputs), call_nearby(function, torch.randn_like)
    rows = zip(function.output_names, outputs, moved, strict=True)
    names = ", ".join(f"'{name}'" for name in function.names)
    return [
        f"{name} depends on {names} but carries no gradient: it is silently zero"
        for name, before, after in rows
        if not before.requires_grad and find_difference([before], [after]) is not None
    ]


def _compare_with_differences(function: TensorFunction, inputs: Sequence[Tensor], precision: Precision) -> Finding:
    try:
        _gradcheck(function, inputs, eps=precision.step, atol=precision.absolute, rtol=precision.relative)
    except GradcheckError as error:
        return _explained(error, function, inputs, precision)
    except Exception as error:
        refusal = _find_refused_step(function, inputs, precision)
        if refusal is not None:
            return skipped(f"the op refuses a value within a step of {precision.step:.1g} ({refusal})")
        if find_refusal(error) is not None or isinstance(error, CustomAutogradError):
            raise
        return failed(f"the backward raises {first_line(error)}")  # the forward has run here and nearby
    return PASSED


def _check_noise(function: TensorFunction, inputs: Sequence[Tensor]) -> Iterator[Finding]:
    """Fail a float64 result that is only good to float32, if gradcheck rejects it at its default tolerances."""
    is_derivative = len(surrogates_of(function)) < len(inputs)  # else the value may jump
    noise = hidden_noise(function, inputs) if is_derivative else 0.0
    if noise and not _gradcheck(function, inputs, raise_exception=False):
        yield failed(
            f"{NOISY} {noise:.1g}, which torch.autograd.gradcheck rejects",
            cause="a step of the kernel is in a narrower dtype; compute in that of the input, or refuse float64",
        )


NOISY = "its results are float64 and only good to"


def _gradcheck(function: TensorFunction, inputs: Sequence[Tensor], **options: Any) -> bool:  # Any: those of torch
    return gradcheck(
        lambda *tensors: tuple(y for y in function(*tensors) if y.requires_grad),
        tuple(inputs),
        check_undefined_grad=False,  # the check cotangents looks at these, with a message of its own
        fast_mode=is_large(function, inputs),
        **options,
    )


def _find_refused_step(function: TensorFunction, inputs: Sequence[Tensor], precision: Precision) -> str | None:
    """Return why the function refuses to be moved by a step of a finite difference; None if it does not."""
    try:
        with torch.no_grad():
            for sign in (-1, 1):
                function(*(x.detach() + sign * precision.step for x in inputs))
    except Exception as error:  # noqa: BLE001 - it takes the sample, so that it refuses these numbers
        return first_line(error)
    return None


def is_large(function: TensorFunction, inputs: Sequence[Tensor]) -> bool:
    """Return True if a full Jacobian takes more than some hundred calls; a random projection is taken for it then."""
    return sum(value.numel() for value in (*inputs, *function(*inputs))) > 128


CLOSER, SHRUNK = 1 / 16, 1 / 4
"""A closer step, with which noise is as much larger, and the share of the error that it leaves at most of a kink."""


def _explained(
    error: GradcheckError, function: TensorFunction, inputs: Sequence[Tensor], precision: Precision
) -> Finding:
    text = str(error).strip().splitlines()[0]
    written = find_written_gradient(function)
    before = "" if written is None else f"the backward {written} its incoming gradient, which belongs to the engine; "
    if "mismatch" not in text and "expected to be zero" not in text:
        return failed(f"{before}gradcheck: {text}", cause="two equal backwards differ" if "reentrant" in text else "")
    is_small = sum(x.numel() for x in inputs) <= MOST_EXPLAINED
    if not is_small or any(value.is_complex() for value in (*inputs, *function(*inputs))):
        points, cotangents = [x.detach() for x in inputs], cotangents_like(function(*inputs))
        direction = find_wrong_direction(function, points, cotangents, precision, names=function.names)
        shown = direction.text if direction else text
        return failed(f"{before}the backward disagrees with finite differences: {shown}")
    growth = find_growth(function, inputs, precision)
    if growth.is_harmless and written is None:
        return skipped(growth.text)
    names, outputs = function.names, function.output_names
    find = functools.partial(find_worst_entry, function, inputs, names=names, outputs=outputs)
    entry, closer = find(precision.step), find(CLOSER * precision.step)
    if entry and closer and precision != FLOAT64 and closer.size < SHRUNK * entry.size:  # there is a kink between them
        entry, noise = closer, (precision.absolute + precision.relative * float(closer.expected.abs().max())) / CLOSER
        if entry.size < noise:
            return skipped(f"the slope changes within a step of {precision.step:.1g}, and a coarse function needs that")
    problem = f"{before}the backward disagrees with finite differences: {entry.text if entry else text}; {growth.text}"
    return failed(problem, cause=growth.cause)


def _check_subsets(function: TensorFunction) -> Iterator[Finding]:
    """Compare the gradients of each subset of the inputs with those that all of them together have.

    gradcheck has shown the latter right for these values, so equality shows the same of each subset.
    """
    cotangents = signed_like(function(*function.inputs))
    expected = vector_jacobian(function, function.inputs, cotangents)
    for chosen in list(subsets(len(function.positions)))[1:]:
        part = function.restricted_to(chosen)
        found = vector_jacobian(part, part.inputs, cotangents)
        names = [f"gradient of '{name}'" for name in part.names]
        difference = find_difference(found, [expected[i] for i in chosen], names=names)
        only = ", ".join(f"'{name}'" for name in part.names)
        yield judged(difference, f"where only {only} needs a gradient: {{}}")


def _check_batched(function: TensorFunction, inputs: Sequence[Tensor], precision: Precision) -> Finding:
    """Check the backward under vmap, as is_grads_batched=True and jacobian(vectorize=True) call it."""
    leaves = tuple(value.detach().clone().requires_grad_() for value in inputs)
    outputs = [output for output in function(*leaves) if output.requires_grad]
    batches = [torch.stack(signed_like([output, output])) for output in outputs]
    kept = [batch.clone() for batch in batches]
    looped = [gradients(outputs, leaves, [batch[i] for batch in batches], retain_graph=True) for i in range(2)]
    if find_difference(batches, kept) is not None:  # torch's vmap segfaults on such a backward (found in torch 2.13)
        return skipped("its backward cannot be batched: it writes to its incoming gradient")
    expected = [torch.stack(pair) for pair in zip(*looped, strict=True)]
    try:
        grads = torch.autograd.grad(outputs, leaves, batches, allow_unused=True, is_grads_batched=True)
    except (RuntimeError, TypeError, ValueError) as error:
        return skipped(f"its backward cannot be batched: {find_refusal(error) or first_line(error)}")
    found = [x.new_zeros((2, *x.shape)) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    names = [f"batched gradient of '{name}'" for name in function.names]
    difference = find_difference(found, expected, names=names, factor=max(1.0, precision.relative / 1e-5))
    return judged(difference, "is_grads_batched=True: {}")


class NonDifferentiable(Check):
    """Outputs without a gradient, before and after the inputs move a little."""

    name = "non_differentiable"
    code = "G13"
    group = "derivatives"
    is_quick = True
    purpose = "no output that depends on an input is without a gradient"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per output that is wrong."""
        disconnected = find_disconnected(function_of(target, sample))
        cause = "it is marked non-differentiable, detached, or no backward is registered"
        yield from [failed(text, cause=cause) for text in disconnected] or [PASSED]
