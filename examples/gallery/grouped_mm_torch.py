"""The kernels of grouped_mm and grouped_outer in PyTorch operations: its own grouped product, and a loop of products.

PyTorch's own reads the offsets on the GPU: for bfloat16 on Hopper and Blackwell the host does not wait for the device.
Nothing looks at the offsets first, then: where they do not ascend from 0 to at most the rows, the result is that of
offsets that do, so that no memory outside of the tensors is addressed. The loop raises.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel


def is_built_in(a: Tensor, b: Tensor, offsets: Tensor) -> bool:
    """Returns True if PyTorch's own grouped product takes the operands: rows of whole 16 bytes, as GPUs copy tiles."""
    columns = 16 // a.element_size()
    fits = a.shape[-1] % columns == 0 and b.shape[-1] % columns == 0 and 0 < a.shape[0] < 2**31 and b.numel() > 0
    fits = fits and a.numel() > 0 and 0 < offsets.numel() < 1024 and not offsets.is_floating_point()
    fits = fits and a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return fits and (not a.is_cuda or has_built_in(a.device))


def has_built_in(device: torch.device) -> bool:
    """Returns True if PyTorch has its own for a GPU: NVIDIA's since Ampere. On Windows it lacks the part for Hopper."""
    is_known = torch.version.hip is None and sys.platform == "linux"
    return is_known and torch.cuda.get_device_capability(device) >= (8, 0)


def aligned(matrices: Tensor) -> Tensor:
    """The same rows, from a multiple of 16 bytes on and without gaps, also between rows of which there is one."""
    flat = matrices.contiguous().flatten()
    return (flat.clone() if flat.data_ptr() % 16 else flat).view(matrices.shape)


def ends_of(rows: Tensor, offsets: Tensor) -> Tensor:
    """Offsets as PyTorch's own takes them, within the rows whatever they are."""
    return offsets.long().clamp(0, rows.shape[0]).cummax(0).values


@triton_kernel
def zero_from(out, begins, size, block: tl.constexpr) -> None:
    """Writes zeros into a part of out, from the element on that begins says."""
    part, first = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * block
    begin = tl.load(begins + part)
    if first + block > begin:
        place = first + tl.arange(0, block)
        zeros = tl.zeros((block,), out.dtype.element_ty)
        tl.store(out + part * size + place, zeros, mask=(place >= begin) & (place < size))


def zeroed(out: Tensor, begins: Tensor) -> Tensor:
    """Zeros what a product does not write of each part; most programs find nothing to do."""
    size, block = out.numel() // begins.numel(), 8192
    zero_from[(-(-size // block), begins.numel())](out, begins, size, block=block, num_warps=8)
    return out


def built_in_products(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """grouped_mm as PyTorch's own, which leaves rows of no group undefined."""
    ends = ends_of(a, offsets)
    matrices = aligned(b.mT).mT if b.mT.is_contiguous() else aligned(b)
    out = F.grouped_mm(aligned(a), matrices, offs=ends.int())
    return zeroed(out, ends[-1:] * out.shape[1])


def built_in_outer_products(a: Tensor, g: Tensor, offsets: Tensor) -> Tensor:
    """grouped_outer as PyTorch's own; a group without rows is a sum over nothing."""
    ends = ends_of(a, offsets)
    out = F.grouped_mm(aligned(a).T, aligned(g), offs=ends.int())
    is_empty = ends.diff(prepend=ends.new_zeros(1)) == 0
    return zeroed(out, (~is_empty).long() * (out.shape[1] * out.shape[2]))


def parts(rows: Tensor, offsets: Tensor) -> list[Tensor]:
    """The rows of each group, and those of none."""
    ends = [0, *offsets.tolist(), len(rows)]
    if any(start > end for start, end in pairwise(ends)):
        raise RuntimeError(f"'offsets' must ascend from 0 to at most {len(rows)}, the rows of 'a'; found {ends[1:-1]}")
    return [rows[start:end] for start, end in pairwise(ends)]


def products(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """grouped_mm as a loop of products, with its offsets on the host."""
    *groups, rest = parts(a.to(b.dtype), offsets)
    return torch.cat([*map(torch.matmul, groups, b), b.new_zeros(len(rest), b.shape[2])])


def outer_products(a: Tensor, g: Tensor, offsets: Tensor) -> Tensor:
    """grouped_outer as a loop of products."""
    lefts, rights = parts(a.to(g.dtype), offsets), parts(g, offsets)
    return torch.stack([left.T @ right for left, right in zip(lefts, rights, strict=True)])[:-1]
