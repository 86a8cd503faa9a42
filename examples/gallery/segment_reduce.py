"""Sum, mean or maximum of consecutive rows, as graph networks need over edges, and batches over unequal sequences.

    out[s] = reduce of x[r] over offsets[s] <= r < offsets[s + 1]

Shapes: x: (rows, ...); offsets: (segments + 1,), from 0 to rows, not decreasing (CSR); out: (segments, ...).
Dtypes: float64, float32, bfloat16, float16; offsets int64; sums are kept in float64 for float64, else in float32.
A segment without rows has sum 0, mean 0 and maximum -infinity, as in torch.segment_reduce. NaN is above all numbers.
Of equal maxima the first has the gradient. Rows are added in a fixed order: the result is the same every time.
Source: Blelloch 1990, "Prefix Sums and Their Applications", section 1.5 (segmented operations).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from segment_spread import lengths, owners, segment_spread
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, numpy_kernel, tl, triton_kernel

reduce_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "segment_reduce")


HIDDEN = ("argmax", "rows")  # rows has no elements: its shape tells the rule how many rows x has, without keeping x


@custom_op(
    "gallery::segment_reduce", outputs=("out", *HIDDEN), hidden=HIDDEN, non_differentiable=HIDDEN, reference=True
)
def segment_reduce(
    x: Tensor, offsets: Tensor, reduce: Literal["sum", "mean", "max"] = "sum"
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum, mean or maximum of the rows of each segment; for "max" also the row of each, else the one behind all."""
    shape, owner, rows = segment_reduce_fake(x, offsets, reduce)[0].shape, owners(offsets, x.shape[0]), x.shape[0]
    wide, shaped = x.to(torch.promote_types(x.dtype, torch.float32)), owner.new_empty(rows, 0)
    if reduce != "max":
        out = wide.new_zeros(shape).index_add(0, owner, wide)
        return (out / lengths(offsets, x.dim()) if reduce == "mean" else out).to(x.dtype), owner.new_empty(0), shaped
    by_row = [-1] + [1] * (x.dim() - 1)
    index = owner.view(by_row).expand(x.shape)
    top = wide.new_full(shape, -torch.inf).scatter_reduce(0, index, wide.detach(), "amax").gather(0, index)
    place = torch.where((wide == top) | wide.isnan(), torch.arange(rows, device=owner.device).view(by_row), rows)
    argmax = owner.new_full(shape, rows).scatter_reduce(0, index, place, "amin")
    return torch.cat((x, x.new_full((1, *shape[1:]), -torch.inf))).gather(0, argmax), argmax, shaped


@segment_reduce.register_shapes(dtypes={"argmax": torch.int64, "rows": torch.int64})
def _(reduce):
    return f"x: [r] *c, offsets: [s+1] -> out: [s] *c, argmax: {'s *c' if reduce == 'max' else '0'}, rows: [r] 0"


@segment_reduce.register_kernel("cpu", name="cpp", layouts="contiguous")
def segment_reduce_cpp(x, offsets, reduce) -> tuple[Tensor, Tensor, Tensor]:
    """C++: a segment's rows are reduced in registers, and threads share out rows."""
    return reduce_cpp(x, offsets, ("sum", "mean", "max").index(reduce))


@segment_reduce.register_kernel(
    "cpu", name="numpy", priority=-1, when=lambda x, reduce: reduce == "sum" and x.dtype.itemsize >= 4
)
@numpy_kernel
def segment_sum_numpy(x, offsets, reduce) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy, where there is no compiler: reduceat, over the segments that have rows."""
    counts = np.diff(offsets, prepend=0, append=len(x))
    if counts[0] or counts[-1] or counts.min() < 0 or offsets.dtype != np.int64:
        raise RuntimeError(f"'offsets' must rise from 0 to {len(x)}, the number of rows, in int64, found {offsets!r}")
    has_rows, out = counts[1:-1] > 0, np.zeros((len(offsets) - 1, *x.shape[1:]), x.dtype)
    out[has_rows] = np.add.reduceat(x, offsets[:-1][has_rows])
    return out, np.empty(0, np.int64), np.empty((len(x), 0), np.int64)


@segment_reduce.register_fake
def segment_reduce_fake(x, offsets, reduce) -> tuple[Tensor, Tensor, Tensor]:
    """Contiguous outputs; argmax is empty where there is no maximum."""
    if x.dim() == 0 or offsets.dim() != 1 or offsets.shape[0] == 0 or offsets.dtype != torch.int64:
        expected = "'offsets' must be int64 of shape (segments + 1,), and 'x' (rows, ...)"
        found = f"{offsets.dtype} {tuple(offsets.shape)} and {tuple(x.shape)}"
        raise RuntimeError(f"gallery::segment_reduce: {expected}; found {found}")
    out = x.new_empty(offsets.shape[0] - 1, *x.shape[1:])
    return out, offsets.new_empty(out.shape if reduce == "max" else 0), offsets.new_empty(x.shape[0], 0)


@triton_kernel
def reduce_rows(x, offsets, out, argmax, rows, features, kind: tl.constexpr, block: tl.constexpr) -> None:
    """Reduces a block of features of one segment, many rows at a time."""
    many: tl.constexpr = 1024 // block
    wide = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    segment = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    first, last = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    # Raising would make the host wait for the device: a segment that is not a range of rows reads nothing, and is NaN.
    is_range = (first >= 0) & (first <= last) & (last <= rows) & ((segment > 0) | (first == 0))
    is_range &= (segment + 1 < tl.num_programs(0)) | (last == rows)
    total = tl.full((many, block), float("-inf") if kind == "max" else 0.0, wide)
    at = tl.full((many, block), rows, tl.int64)
    for start in range(first, tl.where(is_range, last, first), many):
        row = start + tl.arange(0, many)[:, None]
        inside = (row < last) & (feature < features)
        value = tl.load(x + row * features + feature, mask=inside, other=0).to(wide)
        if kind == "max":
            is_larger = inside & ((at == rows) | (value > total) | ((value != value) & (total == total)))
            total, at = tl.where(is_larger, value, total), tl.where(is_larger, row, at)
        else:
            total += value
    place = segment * features + feature
    if kind == "max":
        has_nan = tl.max((total != total).to(tl.int32), 0)[None, :] > 0
        result = tl.where(has_nan, float("nan"), tl.max(tl.where(total != total, float("-inf"), total), 0)[None, :])
        is_top = tl.where(has_nan, total != total, total == result)
        tl.store(argmax + place, tl.min(tl.where(is_top, at, rows), 0)[None, :], mask=feature < features)
    else:
        result = tl.sum(total, 0)[None, :] / (tl.maximum(last - first, 1).to(wide) if kind == "mean" else 1.0)
    tl.store(out + place, tl.where(is_range, result, float("nan")).to(out.dtype.element_ty), mask=feature < features)


@segment_reduce.register_kernel("cuda", name="triton", layouts="contiguous")
def segment_reduce_cuda(x, offsets, reduce) -> tuple[Tensor, Tensor, Tensor]:
    """Triton: one program per segment and block of features."""
    out, argmax, shaped = segment_reduce_fake(x, offsets, reduce)
    if out.numel():  # a grid of size 0 is an error
        features = out[0].numel()
        block = min(128, 1 << (features - 1).bit_length())
        reduce_rows[out.shape[0], -(-features // block)](x, offsets, out, argmax, len(x), features, reduce, block)
    return out, argmax, shaped


@segment_reduce.register_grad("x")
def _(grad, offsets, reduce, argmax, rows):
    if reduce == "max":
        return grad.new_zeros(rows.shape[0] + 1, *grad.shape[1:]).scatter(0, argmax, grad)[:-1]
    return segment_spread(grad, offsets, rows.shape[0], reduce == "mean")


@segment_reduce.register_samples
def _(make):
    yield Sample(make(7, 3), make.tensor([0, 2, 2, 7]))  # an empty segment
    yield Sample(make(5, 2, 9), make.tensor([0, 4, 5]), "mean")
    yield Sample(make(7, 3), make.tensor([0, 2, 6, 7]), "max")
    yield Sample(torch.ones_like(make(3)), make.tensor([0, 1, 3]), "max")  # a tie
    yield Sample(make(0, 4), make.tensor([0, 0]), "mean")  # no rows
    yield Sample(make(3, 2), make.tensor([0, 4])).raises(RuntimeError, match="'offsets'|index 1", on="cpu")


if __name__ == "__main__":
    segment_reduce.check()
