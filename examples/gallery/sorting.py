"""The k largest or smallest of each row, and each row sorted: values with a gradient, and the positions they come from.

    values[i] = x[indices[i]],    grad_x[indices[i]] = grad_values[i], and 0 elsewhere

Shapes: x: (..., n), of which the last dimension is sorted; values, indices: (..., k) for top_k, like x for sort.
Dtypes: any that torch.sort takes; the C++ float64, float32, bfloat16, float16; indices int64.
Order: equal numbers stay in their order, in both directions; -0 is equal to 0, NaN above infinity, as in PyTorch.
Source: Knuth 1998, "The Art of Computer Programming", volume 3, section 5.2.5 (sorting by radix, from the last digit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def check_row(op: str, shape: torch.Size) -> None:
    """Refuses what has no dimension to sort along; under vmap that would be the batch."""
    if not shape:
        raise RuntimeError(f"gallery::{op}: 'x' must have a dimension to sort along, found a single number")


def check_k(shape: torch.Size, k: int) -> None:
    """The same, and refuses more numbers than a row has."""
    check_row("top_k", shape)
    if not 0 <= k <= shape[-1]:
        found = f"{shape[-1]}, the size of the last dimension, found {k}"
        raise RuntimeError(f"gallery::top_k: 'k' must be from 0 to {found}")


@custom_op(
    "gallery::sort",
    outputs=("values", "indices"),
    non_differentiable=("indices",),
    reference=True,
    shapes="x: *b [n] -> values: *b [n], indices: *b [n]",
    dtypes={"indices": torch.int64},
)
def sort(x: Tensor, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The numbers of each row in order, and their positions in the row."""
    check_row("sort", x.shape)
    values, indices = torch.sort(x.contiguous(), dim=-1, descending=descending, stable=True)
    return values, indices


@custom_op(
    "gallery::top_k",
    outputs=("values", "indices"),
    non_differentiable=("indices",),
    reference=True,
    shapes="x: *b [n] -> values: *b [k], indices: *b [k]",
    dtypes={"indices": torch.int64},
)
def top_k(x: Tensor, k: int, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest or smallest numbers of each row, the first of them first, and their positions in the row."""
    check_k(x.shape, k)
    values, indices = torch.sort(x, dim=-1, descending=largest, stable=True)
    return values[..., :k].contiguous(), indices[..., :k].contiguous()


SOURCE = Path(__file__).with_suffix(".cpp")
sort_cpp, top_k_cpp = cpp_kernel(SOURCE, "sort"), cpp_kernel(SOURCE, "top_k")


@sort.register_kernel("cpu", name="cpp", layouts="contiguous", when=lambda x: x.is_floating_point())
def _(x, descending) -> tuple[Tensor, Tensor]:
    """C++: each number and its position become one integer, sorted by radix; rows in parallel."""
    return sort_cpp(x, descending)


@top_k.register_kernel("cpu", name="cpp", layouts="contiguous", when=lambda x: x.is_floating_point())
def _(x, k, largest) -> tuple[Tensor, Tensor]:
    """C++: one pass over the row, which keeps what may still be among the k; rows in parallel."""
    return top_k_cpp(x, k, largest)


@sort.register_fake
def _(x, descending):
    check_row("sort", x.shape)
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int64)


@top_k.register_fake
def _(x, k, largest):
    check_k(x.shape, k)
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


# x itself is not needed: the positions and its shape are enough.
@sort.register_grad("x")
@top_k.register_grad("x")
def _(grad, indices, meta):
    return grad.new_zeros(meta.x.shape).scatter(-1, indices, grad)


@sort.register_jvp
@top_k.register_jvp
def _(tangent_x, indices):
    return tangent_x.gather(-1, indices)


# A batch is one more dimension of rows.
@sort.register_vmap
def _(info, in_dims, x, descending):
    rows = x.movedim(in_dims[0], 0)
    check_row("sort", rows.shape[1:])
    return sort(rows, descending), (0, 0)


@top_k.register_vmap
def _(info, in_dims, x, k, largest):
    rows = x.movedim(in_dims[0], 0)
    check_k(rows.shape[1:], k)
    return top_k(rows, k, largest), (0, 0)


@sort.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(3, 19))
    yield Sample(make(2, 1, 7), descending=True)
    yield Sample(make.tensor([1.0, 0.0, 1.0, -0.0, 0.0]), descending=True)  # ties
    yield Sample(make(2, 0))  # nothing to sort
    yield Sample(make(5, dtype=torch.int64))


@top_k.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(3, 150), 4)
    yield Sample(make(2, 1, 7), 7, largest=False)  # all
    yield Sample(make.tensor([1.0, 0.0, 1.0, -0.0, 0.0]), 3)  # ties
    yield Sample(make(2, 3), 0)  # none
    yield Sample(make(2, 3), 4).raises(RuntimeError, match="'k' must be from 0 to 3.*found 4")
    yield Sample(make(2, 3), -1).raises(RuntimeError, match="found -1")


if __name__ == "__main__":
    sort.check()
    top_k.check()
