"""Tiles of rows in the Triton kernels of flash_attention and flash_attention_varlen, and how large they are.

Every kernel takes tensors as (sequences, heads, length, features). Packed sequences are one such sequence, in which
`ends` says where each begins and ends; a table then says to which one a block of rows belongs.
"""

from __future__ import annotations

import torch
from launch_choices import Launch, launch_of
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel

# By kernel, for tiles of 16 bits with up to 64 and up to 128 features: rows, rows of the other side, warps, stages.
# The first is used; the others are what a tuning run compares it with.
NARROW = {
    "attend": (Launch((128, 64), 4, 3), Launch((128, 128), 8, 3), Launch((128, 64), 8, 3), Launch((64, 64), 4, 3)),
    "queries": (Launch((128, 64), 8, 3), Launch((64, 64), 4, 3), Launch((128, 64), 4, 3), Launch((128, 32), 4, 3)),
    "keys": (Launch((128, 64), 8, 3), Launch((64, 64), 4, 3), Launch((64, 32), 4, 3), Launch((128, 64), 8, 2)),
}
WIDE = {
    "attend": (Launch((128, 64), 8, 3), Launch((128, 128), 8, 2), Launch((128, 64), 4, 3), Launch((64, 64), 4, 3)),
    "queries": (Launch((128, 64), 8, 3), Launch((128, 64), 8, 2), Launch((128, 32), 8, 3), Launch((64, 64), 4, 2)),
    "keys": (Launch((64, 32), 4, 3), Launch((128, 64), 8, 2), Launch((128, 32), 8, 3), Launch((64, 64), 8, 2)),
}


def tiles_of(kernel: str, q: Tensor, v: Tensor) -> Launch:
    """How a kernel is launched: float32 takes no tensor core, and more registers."""
    width = width_of(max(q.shape[-1], v.shape[-1]))
    if q.element_size() == 2 and width <= 128:
        launch = launch_of(f"flash_attention {kernel}, {width}", (NARROW if width <= 64 else WIDE)[kernel])
        # AMD's GPUs have 64 KB of shared memory: no third stage fits.
        return launch._replace(stages=min(2, launch.stages)) if torch.version.hip else launch
    side = 64 if kernel == "attend" else 32
    return Launch((side, 32), 4 if width <= 64 else 8, 2 if width * q.element_size() <= 512 else 1)


@triton_kernel
def find_block(
    ends, other_ends, table, length, other_length, block: tl.constexpr, packed: tl.constexpr, last_first: tl.constexpr
) -> tuple:
    """This program's sequence, and where its rows and those of the other side begin and how many there are."""
    number = tl.program_id(0)
    if packed:
        which = tl.load(table + number)
        # Within the tensors, whatever the ends say: raising would make the host wait for the device.
        start = tl.minimum(tl.maximum(tl.load(ends + which), 0), length)
        length = tl.minimum(tl.maximum(tl.load(ends + which + 1), start), length) - start
        other_start = tl.minimum(tl.maximum(tl.load(other_ends + which), 0), other_length)
        other_length = tl.minimum(tl.maximum(tl.load(other_ends + which + 1), other_start), other_length) - other_start
        first = (number - start // block - which) * block
        sequence = which * 0
    else:
        blocks = tl.cdiv(length, block)
        sequence = (number // blocks).to(tl.int64)
        # With a causal mask the last queries see the most keys: what takes longest begins first.
        first = (blocks - 1 - number % blocks if last_first else number % blocks) * block
        start = sequence * 0
        other_start = sequence * 0
    return sequence, first, start, length, other_start, other_length


@triton_kernel
def load_rows(
    start, first, row, stride, length, features, width: tl.constexpr, is_whole: tl.constexpr, masked: tl.constexpr
) -> tl.tensor:
    """Rows of a head, counted from the first: zero outside of it, where masked. is_whole: all columns are there."""
    place = tl.arange(0, width)
    # The address of the first row changes in a loop; the distances from it do not.
    address = (start + (first + tl.zeros((), tl.int64)) * stride) + row.to(tl.int64)[:, None] * stride + place[None, :]
    if is_whole and not masked:
        values = tl.load(address)
    elif is_whole:
        values = tl.load(address, mask=((first + row >= 0) & (first + row < length))[:, None], other=0)
    else:
        inside = ((first + row >= 0) & (first + row < length))[:, None] & (place < features)[None, :]
        values = tl.load(address, mask=inside, other=0)
    return values


@triton_kernel
def store_rows(start, values, index, stride, length, features, width: tl.constexpr) -> None:
    """Writes rows of a head in the type that they are kept in."""
    place = tl.arange(0, width)
    inside = (index >= 0)[:, None] & (index < length)[:, None] & (place < features)[None, :]
    address = start + index[:, None].to(tl.int64) * stride + place[None, :]
    tl.store(address, values.to(start.dtype.element_ty), mask=inside)


@triton_kernel
def finish_scores(
    product, bias, query, key, queries, keys, b_q, b_k, scale, causal: tl.constexpr, has_bias: tl.constexpr,
    masked: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Scores times log2(e), if masked minus infinity where a query does not see a key; query and key broadcast."""
    scores = product * (scale * 1.4426950408889634)
    if has_bias:
        address = bias + query.to(tl.int64) * b_q + key.to(tl.int64) * b_k
        inside = (query >= 0) & (query < queries) & (key < keys)
        scores += tl.load(address, mask=inside, other=0).to(tl.float32) * 1.4426950408889634
    if masked:
        seen = (query < queries) & (key < keys)
        if causal:
            seen = seen & (key <= query + (keys - queries))
        scores = tl.where(seen, scores, float("-inf"))
    return scores


@triton_kernel
def load_statistics(lse, delta, row, queries) -> tuple:
    """The lse of queries times log2(e), infinity where nothing is seen: every weight is 0 then; and their delta."""
    inside = (row >= 0) & (row < queries)
    shift = tl.load(lse + row, mask=inside, other=0) * 1.4426950408889634
    return tl.where(shift == float("-inf"), float("inf"), shift), tl.load(delta + row, mask=inside, other=0)


def blocks_of(tensor: Tensor, ends: Tensor | None, block: int) -> tuple[Tensor | None, int]:
    """How many blocks of rows there are; of packed sequences also to which one each belongs."""
    sequences, _, length, _ = tensor.shape
    if ends is None:
        return None, sequences * -(-length // block)
    count = ends.numel() - 1
    # On the device, so that the host does not wait for it: every sequence gets a block more than it may need.
    starts = ends // block + torch.arange(count + 1, device=ends.device)
    blocks = torch.arange(length // block + count if count else 0, device=ends.device)
    return (torch.searchsorted(starts, blocks, right=True) - 1).clamp(0, max(0, count - 1)), blocks.numel()


def strides_of(bias: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...]:
    """The strides of a bias over (sequences, heads, queries, keys): 0 where it is broadcast."""
    return (0,) * 4 if bias is None else bias.expand(*q.shape[:3], k.shape[2]).stride()


def width_of(features: int) -> int:
    """As many columns as a tile has: a power of two that tensor cores take."""
    return max(16, 1 << max(0, features - 1).bit_length())


def heads_per(q: Tensor, k: Tensor) -> int:
    """How many heads of q share one of k."""
    return q.shape[1] // max(1, k.shape[1])
