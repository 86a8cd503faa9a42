"""Triton's kernel of rope: a program rotates some positions of several heads by angles that it loads once.

Angles are widened where they are used: no copy of a table is written. Tables of long sequences do not fit into the
cache of a GPU, so the programs that read the same angles run together.
"""

from __future__ import annotations

import torch
from launch_choices import Launch, launch_of
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel

# Pairs of a block, and the heads that a program rotates by the angles that it has loaded once.
LAUNCHES = tuple(Launch(sizes, warps, 1) for *sizes, warps in ((1024, 4, 4), (1024, 8, 4), (512, 4, 4), (1024, 1, 4)))


@triton_kernel
def rotate_blocks(
    x, cos, sin, out, heads, positions, half, chunks,
    is_double: tl.constexpr, block: tl.constexpr, count: tl.constexpr, most: tl.constexpr,
) -> None:  # fmt: skip
    """Rotates some positions of some heads. The programs of the same positions run together, for the cached angles."""
    wide = tl.float64 if is_double else tl.float32
    start = (tl.program_id(0) // chunks).to(tl.int64) * count
    row, column = tl.arange(0, count)[:, None], tl.arange(0, block)[None, :]
    inside = (start + row < positions) & (column < half)
    angle = start * half + (row * half + column)
    c = tl.load(cos + angle, mask=inside, other=0).to(wide)
    s = tl.load(sin + angle, mask=inside, other=0).to(wide)
    place = row * (2 * half) + column
    for number in tl.static_range(most):
        head = tl.program_id(0) % chunks * most + number
        first = (head.to(tl.int64) * positions + start) * (2 * half) + place
        written = inside & (head + tl.zeros_like(row) < heads)
        low = tl.load(x + first, mask=written, other=0).to(wide)
        high = tl.load(x + first + half, mask=written, other=0).to(wide)
        tl.store(out + first, (low * c - high * s).to(out.dtype.element_ty), mask=written)
        tl.store(out + first + half, (high * c + low * s).to(out.dtype.element_ty), mask=written)


def launch(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Rotates x into out; all are contiguous, and none is empty."""
    positions, half = x.shape[-2], x.shape[-1] // 2
    (pairs, most), warps, _ = launch_of(f"rope, {x.element_size()} bytes", LAUNCHES)
    block, heads = 1 << (half - 1).bit_length(), x.numel() // (positions * 2 * half)
    count, chunks = min(max(1, pairs // block), 1 << (positions - 1).bit_length()), -(-heads // most)
    sizes = heads, positions, half, chunks, x.dtype == torch.float64, block, count, most
    rotate_blocks[(chunks * -(-positions // count),)](x, cos, sin, out, *sizes, num_warps=warps)
