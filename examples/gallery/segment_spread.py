"""Copies the row of each segment to all rows of the segment: the gradient of sum and mean in segment_reduce.

    out[r] = x[s] / (offsets[s + 1] - offsets[s] if mean else 1)    for offsets[s] <= r < offsets[s + 1]

Shapes: x: (segments, ...); offsets: (segments + 1,), from 0 to rows, not decreasing; out: (rows, ...).
Dtypes: float64, float32, bfloat16, float16; offsets int64; divided in float64 for float64, else in float32.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel

spread_cpp = cpp_kernel(Path(__file__).with_name("segment_reduce.cpp"), "segment_spread")


def owners(offsets: Tensor, rows: int) -> Tensor:
    """The segment of each row; raises where the offsets are no such list."""
    steps = offsets.diff(prepend=offsets.new_zeros(1), append=offsets.new_full((1,), rows))
    is_wrong = (steps < 0).any() | (steps[0] != 0) | (steps[-1] != 0)
    zero = offsets.new_zeros(1).gather(0, is_wrong.long().view(1))  # an index out of range raises under vmap too
    places = torch.arange(rows, device=offsets.device)
    return torch.searchsorted(offsets.contiguous(), places, right=True) - 1 + zero


def lengths(offsets: Tensor, dims: int) -> Tensor:
    """How many rows each segment has, at least 1, to divide by: in float64, which holds the numbers exactly."""
    return offsets.diff().clamp(min=1).double().view([-1] + [1] * (dims - 1))


# As an op of its own the C++ stays differentiable: its derivatives are those of the reference.
@custom_op("gallery::segment_spread", reference=True, shapes="x: [s] *c, offsets: [s+1] -> output: [rows] *c")
def segment_spread(x: Tensor, offsets: Tensor, rows: int, mean: bool = False) -> Tensor:
    """The row of each segment, divided by how many rows the segment has where mean is set, at each of these rows."""
    segment_spread_fake(x, offsets, rows, mean)
    per_row = (x / lengths(offsets, x.dim())).to(x.dtype) if mean else x
    return per_row.index_select(0, owners(offsets, rows))


@segment_spread.register_kernel("cpu", name="cpp", layouts="contiguous")
def segment_spread_cpp(x, offsets, rows, mean) -> Tensor:
    """C++: one pass, which writes; owners are not looked up, because segments lie one behind the other."""
    return spread_cpp(x, offsets, rows, mean)


@segment_spread.register_fake
def segment_spread_fake(x, offsets, rows, mean) -> Tensor:
    """Contiguous."""
    if x.dim() == 0 or offsets.shape != (x.shape[0] + 1,) or offsets.dtype != torch.int64:
        expected = "'offsets' must be int64 of shape (segments + 1,), and 'x' (segments, ...)"
        found = f"{offsets.dtype} {tuple(offsets.shape)} and {tuple(x.shape)}"
        raise RuntimeError(f"gallery::segment_spread: {expected}; found {found}")
    return x.new_empty(rows, *x.shape[1:])


@segment_spread.register_samples
def _(make):
    yield Sample(make(3, 4), make.tensor([0, 2, 2, 7]), 7)  # an empty segment
    yield Sample(make(2, 2, 9), make.tensor([0, 4, 5]), 5, mean=True)
    yield Sample(make(2), make.tensor([0, 1, 3]), 3, mean=True)
    yield Sample(make(1, 4), make.tensor([0, 0]), 0)  # no rows
    yield Sample(make(1, 2), make.tensor([0, 4]), 3).raises(RuntimeError, match="'offsets'|index 1", on="cpu")


if __name__ == "__main__":
    segment_spread.check()
