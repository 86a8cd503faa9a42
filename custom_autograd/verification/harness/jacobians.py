"""Which entry of a Jacobian is wrong: the sentence that replaces two printed matrices."""

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_autograd.verification.harness.comparison import format_pair
from custom_autograd.verification.harness.differentiable import TensorFunction, vector_jacobian


def find_worst_entry(function: TensorFunction, inputs: Sequence[Tensor], step: float) -> str | None:
    """The entry in which the backward and a central difference differ most, named; None for complex inputs.

    Returns:
        Such as "d output 0[2] / d w[1] = 1.143, expected 4.573 by finite differences (ratio 0.25)".
    """
    if any(value.is_complex() for value in inputs):
        return None
    worst = (0.0, "")
    for position, name in enumerate(function.names):
        numeric = _numeric_columns(function, inputs, position, step)
        for output, expected in enumerate(numeric):
            if expected.is_complex():
                return None
            found = _analytic_rows(function, inputs, position, output, expected)
            worst = max(worst, _largest(found, expected, output, name), key=lambda entry: entry[0])
    return worst[1] or None


def _numeric_columns(function: TensorFunction, inputs: Sequence[Tensor], position: int, step: float) -> list[Tensor]:
    """Per output, the matrix of outputs by elements of one input, by central differences."""
    columns = [_column(function, inputs, position, index, step) for index in range(inputs[position].numel())]
    return [torch.stack(column, -1) for column in zip(*columns, strict=True)]


def _column(function: TensorFunction, inputs: Sequence[Tensor], position: int, index: int, step: float) -> list[Tensor]:
    above, below = ([value.detach().clone() for value in inputs] for _ in range(2))
    above[position].view(-1)[index] += step
    below[position].view(-1)[index] -= step
    with torch.no_grad():
        pairs = zip(function(*above), function(*below), strict=True)
        return [((high - low) / (2 * step)).flatten() for high, low in pairs]


def _analytic_rows(
    function: TensorFunction, inputs: Sequence[Tensor], position: int, output: int, like: Tensor
) -> Tensor:
    """The same matrix by the backward, one unit cotangent per row."""
    rows = torch.zeros_like(like)
    shapes = [torch.zeros_like(value) for value in function(*inputs)]
    for row in range(like.shape[0]):
        cotangents = [value.detach().clone(memory_format=torch.contiguous_format) for value in shapes]
        cotangents[output].view(-1)[row] = 1
        rows[row] = vector_jacobian(function, inputs, cotangents)[position].flatten()
    return rows


def _largest(found: Tensor, expected: Tensor, output: int, name: str) -> tuple[float, str]:
    difference = (found - expected).abs().nan_to_num(nan=torch.inf)
    if difference.numel() == 0 or float(difference.max()) == 0:
        return 0.0, ""
    row, column = divmod(int(difference.argmax()), expected.shape[1])
    one, other = float(found[row, column]), float(expected[row, column])
    where = f"d output {output}[{row}] / d {name}[{column}]"
    return float(difference.max()), f"{where} = {format_pair(one, other, digits=4, text=' by finite differences')}"
