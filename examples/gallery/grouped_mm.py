"""Products of groups of rows with matrices of their own, as in a mixture of experts: split by offsets.

    out[r] = a[r] @ b[g]    for offsets[g-1] <= r < offsets[g],  offsets[-1] = 0;  zero from the last offset on

Shapes: a: (rows, depth); b: (groups, depth, columns); offsets: (groups,), where each group ends; out: (rows, columns).
A group may be empty. The offsets ascend; a kernel that looks at them on the host waits for a GPU, see grouped_mm_torch.
Dtypes: a and b alike: float64, float32, bfloat16, float16, with sums in float64 or float32; offsets any integers.
Semantics: `torch.nn.functional.grouped_mm`. Source: Gale et al. 2023, "MegaBlocks: Efficient Sparse Training with
Mixture-of-Experts", section 3. With G the gradient of out: grad a[r] = G[r] @ b[g]ᵀ, grad b[g] = a[rows of g]ᵀ @ G.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from grouped_mm_torch import built_in_outer_products, built_in_products, is_built_in, outer_products, products
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def members(rows: Tensor, offsets: Tensor) -> Tensor:
    """Which rows belong to which group, as (groups, rows, 1); gather refuses what does not ascend, also under vmap."""
    place, offsets = torch.arange(rows.shape[0] + 1, device=rows.device), offsets.long()
    ends = place.gather(0, offsets.where(offsets.diff(prepend=offsets.new_zeros(1)) >= 0, -1))
    starts = torch.cat((ends.new_zeros(1), ends))[:-1].unsqueeze(1)
    return ((place >= starts) & (place < ends.unsqueeze(1))).unsqueeze(2)[:, :-1]


@custom_op("gallery::grouped_mm", reference=True, tags=torch.Tag.cudagraph_unsafe,
    shapes="a: [r] d, b: [g] d c, offsets: [g] -> output: [r] c")  # fmt: skip
def grouped_mm(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """Each group of rows of a times its own matrix of b."""
    grouped_mm_fake(a, b, offsets)
    return (a @ b).where(members(a, offsets), 0).sum(0)


# The gradient of b, as an op of its own: the C++ stays differentiable. The derivatives of each of the two are the two.
@custom_op("gallery::grouped_outer", reference=True, tags=torch.Tag.cudagraph_unsafe,
    shapes="a: [r] d, g: [r] c, offsets: [n] -> output: [n] d c")  # fmt: skip
def grouped_outer(a: Tensor, g: Tensor, offsets: Tensor) -> Tensor:
    """Per group, the sum of the outer products of the rows of a and g."""
    grouped_outer_fake(a, g, offsets)
    of_group = members(a, offsets)
    return torch.where(of_group, a, 0).mT @ torch.where(of_group, g, 0)


def check(fits: bool, *tensors: Tensor) -> None:
    """Raises what is expected."""
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not fits or tensors[0].dtype != tensors[1].dtype or tensors[2].dtype not in integers:
        expected = "'a' (rows, depth), 'b' (groups, depth, columns) of the same dtype and 'offsets' (groups,), integers"
        found = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)
        raise ValueError(f"gallery::grouped_mm: expected {expected}; found {found}")


@grouped_mm.register_fake
def grouped_mm_fake(a, b, offsets) -> Tensor:
    """Contiguous, whatever the strides of a and b."""
    check((a.dim(), b.dim()) == (2, 3) and a.shape[1:] == b.shape[1:2] and offsets.shape == b.shape[:1], a, b, offsets)
    return a.new_empty(a.shape[0], b.shape[2])


@grouped_outer.register_fake
def grouped_outer_fake(a, g, offsets) -> Tensor:
    """Contiguous, as b is at best."""
    check(a.dim() == 2 and g.dim() == 2 and a.shape[0] == g.shape[0], a, g, offsets)
    return a.new_empty(offsets.shape[0], a.shape[1], g.shape[1])


grouped_mm_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "grouped_mm", fallback=products)
grouped_outer_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "grouped_outer", fallback=outer_products)


@grouped_mm.register_kernel("cpu", name="cpp", layouts={"a": "contiguous", "offsets": "contiguous"})
def grouped_mm_cpu(a, b, offsets) -> Tensor:
    """C++: in tiles that stay in registers. It takes b in any layout, also transposed, and streams it in blocks."""
    grouped_mm_fake(a, b, offsets)
    return grouped_mm_cpp(a.to(torch.promote_types(a.dtype, torch.float32)), b, offsets.long())


@grouped_outer.register_kernel("cpu", name="cpp", layouts="contiguous")
def grouped_outer_cpu(a, g, offsets) -> Tensor:
    """C++: the same tiles, with the rows of a group as the depth."""
    grouped_outer_fake(a, g, offsets)
    return grouped_outer_cpp(a.to(torch.promote_types(a.dtype, torch.float32)), g, offsets.long())


@grouped_mm.register_backward
def _(grad, a, b, offsets):
    return {"a": lambda: grouped_mm(grad, b.mT, offsets), "b": lambda: grouped_outer(a, grad, offsets)}


@grouped_outer.register_backward
def _(grad, a, g, offsets):
    return {"a": lambda: grouped_mm(g, grad.mT, offsets), "g": lambda: grouped_mm(a, grad, offsets)}


# BLAS multiplies bfloat16 in hardware: faster for more than some rows per matrix, and where b is transposed.
grouped_mm.register_kernel(("cpu", "cuda"), products, name="loop", priority=1, when=lambda a, b: a.is_cuda or (
    a.dtype == torch.bfloat16 and (b.stride(-1) != 1 or len(a) > 16 * len(b))))  # fmt: skip
grouped_outer.register_kernel(("cpu", "cuda"), outer_products, name="loop", priority=1,
    when=lambda a: a.is_cuda or a.dtype == torch.bfloat16)  # fmt: skip
grouped_mm.register_kernel("cuda", built_in_products, name="built_in", priority=2, when=is_built_in)
grouped_outer.register_kernel("cuda", built_in_outer_products, name="built_in", priority=2,
    when=lambda a, g, offsets: is_built_in(a, g, offsets))  # fmt: skip
for device_type in ("cpu", "cuda"):
    grouped_mm.register_autocast(device_type, {"a": "lower", "b": "lower"})  # as torch.mm
    grouped_outer.register_autocast(device_type, {"a": "lower", "g": "lower"})


@grouped_mm.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    ends = make.tensor
    yield Sample(make(7, 3), make(3, 3, 5), ends([2, 2, 6]))  # an empty group, and a row of none
    yield Sample(make(20, 16), make(3, 16, 24), ends([5, 5, 18]))  # rows of whole 16 bytes
    yield Sample(make(9, 4), make(1, 4, 35), ends([9]))  # more rows and columns than a tile of some dtype
    yield Sample(make(2, 3), make(2, 4, 5), ends([1, 2])).raises(ValueError, match="'b' must be .g d c. with d = 3")
    yield Sample(make(2, 3), make(2, 3, 5), ends([2, 1])).raises(RuntimeError, match="'offsets' must ascend", on="cpu")


@grouped_outer.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(7, 3), make(7, 5), make.tensor([2, 2, 6]))
    yield Sample(make(20, 16), make(20, 24), make.tensor([5, 5, 18]))  # rows of whole 16 bytes
    yield Sample(make(2, 3), make(2, 5), make.tensor([3])).raises(RuntimeError, match="to at most 2", on="cpu")


if __name__ == "__main__":
    grouped_mm.check()
    grouped_outer.check()
