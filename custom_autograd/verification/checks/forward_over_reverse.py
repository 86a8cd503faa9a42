"""Forward mode through the backward agrees with finite differences of the backward: Hessian-vector products."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    skipped,
)
from custom_autograd.verification.harness.causes import find_cause
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    cotangents_like,
    function_of,
    require_tangents,
    signed_like,
    vector_jacobian,
    with_derivatives,
)
from custom_autograd.verification.harness.numerical import Precision, has_kink, precision_of
from custom_autograd.verification.harness.targets import Target


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
        if not any(output.requires_grad for output in outputs):
            raise NothingToCheckError("no output carries a gradient")
        cotangents = cotangents_like(outputs)
        directions = signed_like(function.inputs)
        try:
            found = _tangents(function, cotangents, directions)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            refusal = find_refusal(error, is_optional=True)
            if refusal is None:
                raise
            yield skipped(f"forward mode through the backward is refused: {refusal}")
            return
        if has_kink(function, precision):
            raise NothingToCheckError("there is no second derivative here: the slopes on both sides differ")
        expected = _differences(function, cotangents, directions, precision)
        for name, one, other in zip(function.names, found, expected, strict=True):
            yield _compare(name, one, other, precision)


def _tangents(
    function: TensorFunction, cotangents: Sequence[Tensor], directions: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    with forward_ad.dual_level():
        pairs = zip(function.inputs, directions, strict=True)
        duals = [forward_ad.make_dual(x.detach().requires_grad_(), v) for x, v in pairs]
        outputs = function(*duals)
        kept = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if y.requires_grad]
        grads = torch.autograd.grad(
            [y for y, _ in kept], duals, [u for _, u in kept], create_graph=True, allow_unused=True
        )
        return tuple(_tangent(x, grad) for x, grad in zip(duals, grads, strict=True))


def _tangent(like: Tensor, grad: Tensor | None) -> Tensor:
    tangent = None if grad is None else forward_ad.unpack_dual(grad).tangent
    return torch.zeros_like(like).detach() if tangent is None else tangent.detach().clone()


def _differences(
    function: TensorFunction, cotangents: Sequence[Tensor], directions: Sequence[Tensor], precision: Precision
) -> tuple[Tensor, ...]:
    moved = [
        [x.detach() + sign * precision.step * v for x, v in zip(function.inputs, directions, strict=True)]
        for sign in (1, -1)
    ]
    above, below = (vector_jacobian(function, inputs, cotangents) for inputs in moved)
    return tuple((high - low) / (2 * precision.step) for high, low in zip(above, below, strict=True))


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
