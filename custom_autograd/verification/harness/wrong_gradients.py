"""What a gradient that disagrees with finite differences is: a wrong formula, rounding, a kink, or a random result.

wrong formula     the error stays the same however small the step
rounding          the error grows as the step shrinks: the kernel answers more coarsely than its dtype
kink              the slopes on both sides differ: no number is right, and the check has nothing to say there
not repeatable    two equal calls differ, so that no difference means anything

The wrong entry of a Jacobian is named in a sentence that replaces two printed matrices.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import Check, NothingToCheckError
from custom_autograd.verification.harness.causes import choose_cause, find_cause, find_swap
from custom_autograd.verification.harness.comparison import find_difference, format_pair
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    TensorsFunction,
    able_positions,
    signed_like,
    vector_jacobian,
)
from custom_autograd.verification.harness.numerical import Precision, along_one, gradient, inner, needs_finer_step
from custom_autograd.verification.harness.sweeps import subsets
from custom_autograd.verification.harness.targets import Target


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
    grads = vector_jacobian(function, points, cotangents)
    found = [look(function, points, position, cotangents, grad, precision) for position, grad in enumerate(grads)]
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


def look(
    function: TensorFunction,
    points: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    grad: Tensor,
    precision: Precision,
) -> Seen:
    """Look at every element of the gradient of one real input."""
    expected, is_kink = gradient(function, points, position, cotangents, precision)
    bound = 10 * (precision.absolute + precision.relative * expected.abs().max())
    is_wrong = ~((grad - expected).abs() <= bound)
    return Seen(torch.where(is_kink, grad, expected), is_wrong & ~is_kink, is_wrong & is_kink)


def _cause(names: Sequence[str], grads: Sequence[Tensor], found: Sequence[Seen], wrong: Sequence[int]) -> str:
    """Return why the gradients of these inputs are wrong; empty if no cause accounts for all of them."""
    expected = [entry.expected for entry in found]
    named = [f"the gradient of '{name}'" for name in names]
    swap = find_swap(named, grads, expected, wrong[0], relative=1e-4)
    return swap or choose_cause([find_cause(grads[position], expected[position], relative=1e-4) for position in wrong])


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
    errors = []
    for step in (1e-2, 1e-6):
        estimate = along_one(function, inputs, position, direction * step / 1e-3, cotangents, precision)
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


@dataclass(frozen=True, slots=True)
class JacobianEntry:
    """The entry of a Jacobian in which the backward and a central difference differ most.

    Args:
        text: such as "d output 0[2] / d w[1] = 1.143, expected 4.573 by finite differences (ratio 0.25)".
        found: the matrix of the entry, output by input, by the backward.
        expected: the same by finite differences.
        size: how much the two differ in the entry.
        input: the position of the input.
    """

    text: str
    found: Tensor
    expected: Tensor
    size: float
    input: int


def find_worst_entry(
    function: TensorsFunction, inputs: Sequence[Tensor], step: float, *, names: Sequence[str], outputs: Sequence[str]
) -> JacobianEntry | None:
    """Return the entry in which the backward and a central difference differ most; None for complex tensors.

    Args:
        function: real tensors in, real tensors out.
        inputs: the point.
        step: of the finite differences.
        names: what to call the inputs.
        outputs: what to call the outputs.
    """
    if any(value.is_complex() for value in inputs):
        return None
    worst: JacobianEntry | None = None
    for position, name in enumerate(names):
        columns = [_column(function, inputs, position, index, step) for index in range(inputs[position].numel())]
        # per output, the matrix of outputs by elements of one input, by central differences
        for output, expected in enumerate(torch.stack(column, -1) for column in zip(*columns, strict=True)):
            if expected.is_complex():
                return None
            found = _analytic_rows(function, inputs, position, output, expected)
            record = _largest(found, expected, outputs[output].replace("'", ""), name, position)
            if record is not None and (worst is None or record.size > worst.size):
                worst = record
    return worst


def find_wrong_direction(
    function: TensorsFunction,
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    precision: Precision,
    *,
    names: Sequence[str],
    outputs: str = "the outputs",
) -> JacobianEntry | None:
    """Return one random direction of an input along which the backward is wrong, for Jacobians too large to look at.

    Args:
        function: real tensors in, real tensors out.
        inputs: the point.
        cotangents: one per output; zero for one whose derivative is not looked at.
        precision: how finely the function answers.
        names: what to call the inputs.
        outputs: what to call the outputs.

    Returns:
        Matrices of one number, that of the direction; None for complex tensors, or if each direction is right.
    """
    if any(value.is_complex() for value in (*inputs, *cotangents)):
        return None
    grads = vector_jacobian(function, inputs, cotangents)
    for position, (name, grad) in enumerate(zip(names, grads, strict=True)):
        direction = torch.randn_like(grad)
        estimate = along_one(function, inputs, position, direction, cotangents, precision)
        found, size = inner([grad], [direction]), float(grad.norm() * direction.norm())
        largest = max(abs(estimate.value), 0.1 * size)
        error = abs(found - estimate.value)
        bound = 10 * (estimate.error + precision.absolute + precision.relative * largest)
        if not estimate.is_kink and error > bound:
            pair = format_pair(found, estimate.value, digits=4, text=" by finite differences")
            text = f"the derivative of {outputs} by {name} along a direction = {pair}"
            return JacobianEntry(
                text,
                torch.tensor([[found]], device="cpu"),
                torch.tensor([[estimate.value]], device="cpu"),
                error,
                position,
            )
    return None


def _column(
    function: TensorsFunction, inputs: Sequence[Tensor], position: int, index: int, step: float
) -> list[Tensor]:
    above, below = ([value.detach().clone() for value in inputs] for _ in range(2))
    above[position].view(-1)[index] += step
    below[position].view(-1)[index] -= step
    with torch.no_grad():
        pairs = zip(function(*above), function(*below), strict=True)
        return [((high - low) / (2 * step)).flatten() for high, low in pairs]


def _analytic_rows(
    function: TensorsFunction, inputs: Sequence[Tensor], position: int, output: int, like: Tensor
) -> Tensor:
    """Return the same matrix by the backward, one unit cotangent per row."""
    rows = torch.zeros_like(like)
    shapes = [torch.zeros_like(value) for value in function(*inputs)]
    for row in range(like.shape[0]):
        cotangents = [value.detach().clone(memory_format=torch.contiguous_format) for value in shapes]
        cotangents[output].view(-1)[row] = 1
        rows[row] = vector_jacobian(function, inputs, cotangents)[position].flatten()
    return rows


def _largest(found: Tensor, expected: Tensor, output: str, name: str, position: int) -> JacobianEntry | None:
    difference = (found - expected).abs().nan_to_num(nan=torch.inf)
    if difference.numel() == 0 or float(difference.max()) == 0:
        return None
    row, column = divmod(int(difference.argmax()), expected.shape[1])
    one, other = float(found[row, column]), float(expected[row, column])
    pair = format_pair(one, other, digits=4, text=" by finite differences")
    text = f"d {output}[{row}] / d {name}[{column}] = {pair}"
    return JacobianEntry(text, found, expected, float(difference.max()), position)


class OfInputs(Check):
    """A check of derivatives with a part for each subset of the inputs that can have a gradient.

    Args:
        only: the names of those inputs that are looked at; every subset by default.
    """

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        self.only = only

    def parts(self, target: Target, samples: Sequence[Sample]) -> Mapping[str, Check]:
        """Return one for each subset of the inputs."""
        found: dict[str, tuple[str, ...]] = {}  # "x_weight" -> (x, weight)
        for sample in samples:
            names = _names(target, sample)
            for chosen in subsets(len(names)) if names else ():
                part = tuple(names[i] for i in chosen)
                found.setdefault("_".join(re.sub(r"\W+", "", name) for name in part), part)
        return {label: type(self)(names) for label, names in found.items()} or {"": self}


def chosen_subsets(function: TensorFunction, only: tuple[str, ...] | None) -> Iterator[tuple[int, ...]]:
    """Yield every subset of a function's arguments, or the one with these names.

    Raises:
        NothingToCheckError: there is none with these names.
    """
    found = list(subsets(len(function.positions)))
    if only is not None:
        found = [chosen for chosen in found if tuple(function.names[i] for i in chosen) == only]
        if not found:
            raise NothingToCheckError(f"the sample has no gradient for {', '.join(only)} together")
    yield from found


def _names(target: Target, sample: Sample) -> list[str]:
    leaves = sample.leaves()
    return [target.name_of(leaves[position]) for position in able_positions(target, sample)]
