"""The derivative of the backward agrees with finite differences of the backward, whichever inputs need a gradient."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from custom_autograd.core.samples import Sample
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    skipped,
)
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of, signed_like
from custom_autograd.verification.harness.numerical import has_kink
from custom_autograd.verification.harness.parts import chosen_subsets, parts_by_inputs
from custom_autograd.verification.harness.precision import Precision, precision_of
from custom_autograd.verification.harness.targets import Target


class SecondOrder(Check):
    """Second derivatives: torch.autograd.gradgradcheck for every subset of the inputs."""

    name = "second_order"
    code = "G09"
    group = "derivatives"
    needs = ("gradcheck", "linearity")
    purpose = "second derivatives are right, or the op says that it has none"

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        self.only = only

    def parts(self, target: Target, samples: Sequence[Sample]) -> Mapping[str, Check]:
        """One for each subset of the inputs."""
        found = parts_by_inputs(target, samples)
        return {label: SecondOrder(names) for label, names in found.items()} or {"": self}

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per subset; a backward that says it cannot be differentiated is honest, and skipped."""
        function = function_of(target, sample)
        if not any(output.requires_grad for output in function(*function.inputs)):
            raise NothingToCheckError("no output carries a gradient")
        if not all(bool(torch.isfinite(y).all()) for y in function(*function.inputs)):
            raise NothingToCheckError("a result is not finite here")
        precision = precision_of(function, function.inputs)
        for chosen in chosen_subsets(function, self.only):
            finding = _check(function.restricted_to(chosen), precision)
            yield finding
            if finding is not PASSED:
                return


def _check(function: TensorFunction, precision: Precision) -> Finding:
    names = ", ".join(f"'{name}'" for name in function.names)
    inputs = function.inputs
    outputs = [output for output in function(*inputs) if output.requires_grad]
    if not outputs:
        return PASSED
    cotangents = tuple(u.requires_grad_() for u in signed_like(outputs))
    refusal = _refusal(outputs, inputs, cotangents)
    if refusal is not None:
        return skipped(f"the op has no second derivative and says so: {refusal}")
    size = sum(value.numel() for value in (*inputs, *cotangents))
    try:
        gradgradcheck(
            lambda *tensors: tuple(y for y in function(*tensors) if y.requires_grad),
            inputs,
            cotangents,
            eps=precision.step,
            atol=10 * precision.absolute,
            rtol=10 * precision.relative,
            check_undefined_grad=False,
            fast_mode=size > 96,
        )
    except GradcheckError as error:
        if has_kink(function, precision):
            return skipped(f"there is no derivative here along {names}: the slopes on both sides differ")
        return failed(f"the second derivative by {names} is wrong: {_cause(str(error))}")
    except (RuntimeError, TypeError) as error:
        refusal = find_refusal(error, is_optional=True)
        if refusal is None:
            raise
        return skipped(f"the op has no second derivative and says so: {refusal}")
    return PASSED


def _refusal(outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> str | None:
    """What a second backward raises.

    gradgradcheck asks for the gradients of chosen tensors, and then the engine never reaches the node by which
    torch.autograd.function.once_differentiable refuses: it sees zeros. A whole backward reaches it.
    """
    grads = torch.autograd.grad(outputs, inputs, cotangents, create_graph=True, allow_unused=True)
    able = [grad for grad in grads if grad is not None and grad.requires_grad]
    try:
        if able:
            torch.autograd.backward(able, [torch.ones_like(grad) for grad in able])
    except (RuntimeError, TypeError) as error:
        refusal = find_refusal(error, is_optional=True)
        if refusal is None:
            raise
        return refusal
    return None


def _cause(text: str) -> str:
    first = text.strip().splitlines()[0].rstrip(",")
    if "expected to be zero" in text or "not require grad" in text or "numerical gradient" in text.lower():
        return f"the backward depends on what it was saved from, but is disconnected from it ({first})"
    return first
