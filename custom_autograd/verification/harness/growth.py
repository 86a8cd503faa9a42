"""What a gradient that disagrees with finite differences is: a wrong formula, rounding, a kink, or a random result.

wrong formula     the error stays the same however small the step
rounding          the error grows as the step shrinks: the kernel answers more coarsely than its dtype
kink              the slopes on both sides differ: no number is right, and the check has nothing to say there
not repeatable    two equal calls differ, so that no difference means anything
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_autograd.verification.harness.causes import find_cause, find_swap
from custom_autograd.verification.harness.claims import choose_cause
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, copies, signed_like, vector_jacobian
from custom_autograd.verification.harness.numerical import along, gradient, inner, needs_finer_step
from custom_autograd.verification.harness.precision import Precision


@dataclass(frozen=True, slots=True)
class Growth:
    """The kind of a disagreement.

    Args:
        text: one phrase that says so.
        cause: why, probably.
        is_harmless: whether every element that disagrees is at a kink, or the disagreement is rounding.
    """

    text: str
    cause: str = ""
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The gradient of one input by finite differences (that of the backward at a kink), and where the two disagree."""

    expected: Tensor
    is_wrong: Tensor
    is_at_kink: Tensor


def find_growth(function: TensorFunction, inputs: Sequence[Tensor], precision: Precision) -> Growth:
    """Look at every element of every input, for one cotangent of both signs.

    Args:
        function: real tensors in, real tensors out.
        inputs: the point.
        precision: how finely the function answers.
    """
    points = tuple(x.detach() for x in inputs)
    with torch.no_grad():
        first, second = function(*points), function(*points)
    difference = find_difference(second, first, names=function.output_names)
    if difference is not None:
        return Growth(f"two equal calls differ: {difference}", "the op is not deterministic")
    cotangents = [u if y.requires_grad else u * 0 for u, y in zip(signed_like(first), function(*inputs), strict=True)]
    grads = vector_jacobian(function, points, copies(cotangents))
    found = [_look(function, points, position, cotangents, grad, precision) for position, grad in enumerate(grads)]
    wrong = [position for position, entry in enumerate(found) if bool(entry.is_wrong.any())]
    if wrong:
        cause = _cause(function.names, grads, found, wrong)
        return _growth(function, points, wrong[0], cotangents, grads[wrong[0]], precision, cause)
    pairs = zip(function.names, points, found, strict=True)
    kinks = [_shown(name, point, row) for name, point, entry in pairs for row in entry.is_at_kink.nonzero()]
    if kinks:
        return Growth(f"there is no derivative at {', '.join(kinks[:3])}: the slopes on both sides differ", "", True)
    if needs_finer_step(function, precision):
        text = "the slope changes within a step of gradcheck, and agrees with finite differences over smaller ones"
        return Growth(text, is_harmless=True)
    return Growth("the error is in the Jacobian of one output, and cancels in a sum over all")


def _look(
    function: TensorFunction,
    points: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    grad: Tensor,
    precision: Precision,
) -> Seen:
    expected, is_kink = gradient(function, points, position, cotangents, precision)
    is_wrong = _is_wrong(grad, expected, precision)
    return Seen(torch.where(is_kink, grad, expected), is_wrong & ~is_kink, is_wrong & is_kink)


def _cause(names: Sequence[str], grads: Sequence[Tensor], found: Sequence[Seen], wrong: Sequence[int]) -> str:
    """Return why the gradients of these inputs are wrong; empty if no cause accounts for all of them."""
    expected = [entry.expected for entry in found]
    named = [f"the gradient of '{name}'" for name in names]
    swap = find_swap(named, grads, expected, wrong[0], relative=1e-4)
    return swap or choose_cause([find_cause(grads[position], expected[position], relative=1e-4) for position in wrong])


def _is_wrong(found: Tensor, expected: Tensor, precision: Precision) -> Tensor:
    bound = 10 * (precision.absolute + precision.relative * expected.abs().max())
    return ~((found - expected).abs() <= bound)


def _growth(
    function: TensorFunction,
    inputs: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    grad: Tensor,
    precision: Precision,
    cause: str,
) -> Growth:
    """Return how the error along the gradient's own direction changes from a large step to a small one."""
    direction = torch.randn_like(grad)
    directions = [direction if i == position else None for i in range(len(inputs))]
    errors = []
    for step in (1e-2, 1e-6):
        scaled = [None if v is None else v * step / 1e-3 for v in directions]
        estimate = along(function, inputs, scaled, cotangents, precision)
        errors.append(abs(estimate.value * 1e-3 / step - inner([grad], [direction])))
    large, small = errors
    if small > 100 * large:
        text = f"the error grows from {large:.2g} to {small:.2g} as the step shrinks: rounding, not the formula"
        return Growth(text, is_harmless=True)
    text = f"the error is {large:.2g} for a large step and {small:.2g} for a small one: the formula is wrong"
    return Growth(text, cause)


def _shown(name: str, point: Tensor, index: Tensor) -> str:
    """Return one element and its value: "'x'[2, 0] = 0"."""
    subscript = f"[{', '.join(str(int(i)) for i in index)}]" if len(index) else ""
    return f"'{name}'{subscript} = {point[tuple(index)].item():.6g}"
