"""Triton's forward kernel of flash_attention and flash_attention_varlen, and what it shares with the backward kernels.

Every kernel takes tensors as (sequences, heads, length, features). Packed sequences are one such sequence, in which
`ends` says where each begins and ends; a table then says to which one a block of rows belongs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def find_block(ends, other_ends, table, length, other_length, block: tl.constexpr, packed: tl.constexpr) -> tuple:
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
        first = number % blocks * block
        start = sequence * 0
        other_start = sequence * 0
    return sequence, first, start, length, other_start, other_length


@triton_kernel
def load_rows(start, index, stride, length, features, width: tl.constexpr) -> tl.tensor:
    """Rows of a head: zero outside of them."""
    place = tl.arange(0, width)
    inside = (index >= 0)[:, None] & (index < length)[:, None] & (place < features)[None, :]
    return tl.load(start + index[:, None].to(tl.int64) * stride + place[None, :], mask=inside, other=0)


@triton_kernel
def store_rows(start, values, index, stride, length, features, width: tl.constexpr) -> None:
    """Writes rows of a head in the type that they are kept in."""
    place = tl.arange(0, width)
    inside = (index >= 0)[:, None] & (index < length)[:, None] & (place < features)[None, :]
    address = start + index[:, None].to(tl.int64) * stride + place[None, :]
    tl.store(address, values.to(start.dtype.element_ty), mask=inside)


@triton_kernel
def finish_scores(
    product, bias, query, key, queries, keys, b_q, b_k, scale, causal: tl.constexpr, has_bias: tl.constexpr
) -> tl.tensor:
    """Scores times log2(e), minus infinity where a query does not see a key; query and key broadcast to the tile."""
    scores = product * (scale * 1.4426950408889634)
    seen = (query < queries) & (key < keys)
    if has_bias:
        address = bias + query.to(tl.int64) * b_q + key.to(tl.int64) * b_k
        scores += tl.load(address, mask=seen, other=0).to(tl.float32) * 1.4426950408889634
    if causal:
        seen = seen & (key <= query + (keys - queries))
    return tl.where(seen, scores, float("-inf"))


@triton_kernel
def attend(
    q, k, v, bias, out, lse, ends, other_ends, table, queries, keys, group, scale, features, value_features,
    q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r, o_s, o_h, o_r, l_s, l_h, l_r, b_s, b_h, b_q, b_k,
    causal: tl.constexpr, has_bias: tl.constexpr, packed: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, block: tl.constexpr, key_block: tl.constexpr,
) -> None:  # fmt: skip
    """One block of queries of one head against all keys that it sees."""
    s, first, q_start, queries, k_start, keys = find_block(ends, other_ends, table, queries, keys, block, packed)
    head = tl.program_id(1).to(tl.int64)
    row = first + tl.arange(0, block)
    q_tile = load_rows(q + s * q_s + head * q_h + q_start * q_r, row, q_r, queries, features, width)
    k += s * k_s + head // group * k_h + k_start * k_r
    v += s * v_s + head // group * v_h + v_r * k_start
    largest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    sums = tl.zeros((block, value_width), tl.float32)
    seen = tl.minimum(keys, first + block + keys - queries) if causal else keys
    for start in range(0, seen, key_block):
        key = start + tl.arange(0, key_block)
        k_tile = load_rows(k, key, k_r, keys, features, width)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        offset = bias + s * b_s + head * b_h if has_bias else bias
        scores = finish_scores(
            product, offset, row[:, None], key[None, :], queries, keys, b_q, b_k, scale, causal, has_bias
        )
        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(tl.abs(larger) == float("inf"), 0.0, larger)  # inf - inf is NaN
        weights = tl.exp2(scores - shift[:, None])
        factor = tl.exp2(largest - shift)
        total = total * factor + tl.sum(weights, 1)
        v_tile = load_rows(v, key, v_r, keys, value_features, value_width)
        sums = sums * factor[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile, input_precision="ieee")
        largest = larger
    share = tl.where(total == 0, 0.0, 1 / total)
    # A maximum does not see NaN, and the sum does; where nothing was seen the logarithm of the sum is -inf.
    values = (tl.where(tl.abs(largest) == float("inf"), 0.0, largest) + tl.log2(total)) * 0.6931471805599453
    store_rows(out + s * o_s + head * o_h + q_start * o_r, sums * share[:, None], row, o_r, queries, value_features,
               value_width)  # fmt: skip
    tl.store(lse + s * l_s + head * l_h + (q_start + row) * l_r, values, mask=(row >= 0) & (row < queries))


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


def launch_attend(q, k, v, bias, ends, scale: float, causal: bool, out: Tensor, lse: Tensor) -> None:
    """Fills out and lse; ends are those of packed queries and keys, or (None, None)."""
    width, value_width = width_of(q.shape[-1]), width_of(v.shape[-1])
    block, key_block = (128, 64) if max(width, value_width) <= 64 and q.element_size() == 2 else (64, 32)
    table, blocks = blocks_of(q, ends[0], block)
    if blocks and q.shape[1]:  # a grid of size 0 is an error
        attend[(blocks, q.shape[1])](
            q, k, v, bias, out, lse, *ends, table, q.shape[2], k.shape[2], heads_per(q, k), scale,
            q.shape[-1], v.shape[-1], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            *lse.stride(), *strides_of(bias, q, k), causal, bias is not None, table is not None,
            width, value_width, block, key_block, num_warps=4 if width <= 64 else 8,
        )  # fmt: skip
