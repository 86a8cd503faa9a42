"""Which entry of a Jacobian is wrong: the sentence that replaces two printed matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from custom_autograd.verification.harness.comparison import format_pair
from custom_autograd.verification.harness.differentiable import copies, vector_jacobian
from custom_autograd.verification.harness.numerical import along, inner
from custom_autograd.verification.harness.precision import Precision


class NamedFunction(Protocol):
    """Tensors in, floating and complex tensors out, with a name for each that goes in."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arguments."""
        ...

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the results."""
        ...


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
    function: NamedFunction, inputs: Sequence[Tensor], step: float, *, outputs: Sequence[str]
) -> JacobianEntry | None:
    """Return the entry in which the backward and a central difference differ most; None for complex tensors.

    Args:
        function: real tensors in, real tensors out.
        inputs: the point.
        step: of the finite differences.
        outputs: what to call the outputs.
    """
    if any(value.is_complex() for value in inputs):
        return None
    worst: JacobianEntry | None = None
    for position, name in enumerate(function.names):
        for output, expected in enumerate(_numeric_columns(function, inputs, position, step)):
            if expected.is_complex():
                return None
            found = _analytic_rows(function, inputs, position, output, expected)
            record = _largest(found, expected, outputs[output].replace("'", ""), name, position)
            if record is not None and (worst is None or record.size > worst.size):
                worst = record
    return worst


def find_wrong_direction(
    function: NamedFunction,
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    precision: Precision,
    *,
    outputs: str = "the outputs",
) -> JacobianEntry | None:
    """Return one random direction of an input along which the backward is wrong, for Jacobians too large to look at.

    Args:
        function: real tensors in, real tensors out.
        inputs: the point.
        cotangents: one per output; zero for one whose derivative is not looked at.
        precision: how finely the function answers.
        outputs: what to call the outputs.

    Returns:
        Matrices of one number, that of the direction; None for complex tensors, or if each direction is right.
    """
    if any(value.is_complex() for value in (*inputs, *cotangents)):
        return None
    grads = vector_jacobian(function, inputs, copies(cotangents))
    for position, (name, grad) in enumerate(zip(function.names, grads, strict=True)):
        direction = torch.randn_like(grad)
        directions = [direction if i == position else None for i in range(len(inputs))]
        estimate = along(function, inputs, directions, cotangents, precision)
        found, size = inner([grad], [direction]), float(grad.norm() * direction.norm())
        largest = max(abs(estimate.value), 0.1 * size)
        error = abs(found - estimate.value)
        bound = 10 * (estimate.error + precision.absolute + precision.relative * largest)
        if not estimate.is_kink and error > bound:
            pair = format_pair(found, estimate.value, digits=4, text=" by finite differences")
            text = f"the derivative of {outputs} by {name} along a direction = {pair}"
            return JacobianEntry(text, torch.tensor([[found]]), torch.tensor([[estimate.value]]), error, position)
    return None


def _numeric_columns(function: NamedFunction, inputs: Sequence[Tensor], position: int, step: float) -> list[Tensor]:
    """Return, per output, the matrix of outputs by elements of one input, by central differences."""
    columns = [_column(function, inputs, position, index, step) for index in range(inputs[position].numel())]
    return [torch.stack(column, -1) for column in zip(*columns, strict=True)]


def _column(function: NamedFunction, inputs: Sequence[Tensor], position: int, index: int, step: float) -> list[Tensor]:
    above, below = ([value.detach().clone() for value in inputs] for _ in range(2))
    above[position].view(-1)[index] += step
    below[position].view(-1)[index] -= step
    with torch.no_grad():
        pairs = zip(function(*above), function(*below), strict=True)
        return [((high - low) / (2 * step)).flatten() for high, low in pairs]


def _analytic_rows(
    function: NamedFunction, inputs: Sequence[Tensor], position: int, output: int, like: Tensor
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
