"""Triton's forward kernel of flash_attention and flash_attention_varlen: blocks of queries against keys they see."""

from __future__ import annotations

from flash_attention_tiles import (
    blocks_of,
    find_block,
    finish_scores,
    heads_per,
    load_rows,
    store_rows,
    strides_of,
    tiles_of,
    width_of,
)
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def attend_some(
    begin, end, q_tile, k, v, bias, sums, total, largest, row, queries, keys, scale, features, value_features,
    k_r, v_r, b_q, b_k, causal: tl.constexpr, has_bias: tl.constexpr, width: tl.constexpr, value_width: tl.constexpr,
    key_block: tl.constexpr, is_whole: tl.constexpr, masked: tl.constexpr,
) -> tuple:  # fmt: skip
    """Adds the keys from begin to end to the running softmax."""
    column = tl.arange(0, key_block)
    for start in range(begin, end, key_block):
        k_tile = load_rows(k, start, column, k_r, keys, features, width, is_whole, masked)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        scores = finish_scores(
            product, bias, row[:, None], (start + column)[None, :], queries, keys, b_q, b_k, scale, causal, has_bias,
            masked,
        )  # fmt: skip
        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(tl.abs(larger) == float("inf"), 0.0, larger)  # inf - inf is NaN
        weights = tl.exp2(scores - shift[:, None])
        factor = tl.exp2(largest - shift)
        total = total * factor + tl.sum(weights, 1)
        v_tile = load_rows(v, start, column, v_r, keys, value_features, value_width, is_whole, masked)
        sums = tl.dot(weights.to(v_tile.dtype), v_tile, sums * factor[:, None], input_precision="ieee")
        largest = larger
    return sums, total, largest


@triton_kernel
def attend(
    q, k, v, bias, out, lse, ends, other_ends, table, queries, keys, group, scale, features, value_features,
    q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r, o_s, o_h, o_r, l_s, l_h, l_r, b_s, b_h, b_q, b_k,
    causal: tl.constexpr, has_bias: tl.constexpr, packed: tl.constexpr, is_whole: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, block: tl.constexpr, key_block: tl.constexpr,
) -> None:  # fmt: skip
    """One block of queries of one head against all keys that it sees: first those that no mask hides, then the rest."""
    s, first, q_start, queries, k_start, keys = find_block(
        ends, other_ends, table, queries, keys, block, packed, causal
    )
    head = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, block)
    row = first + place
    q_tile = load_rows(q + s * q_s + head * q_h + q_start * q_r, first, place, q_r, queries, features, width, is_whole,
                       True)  # fmt: skip
    k += s * k_s + head // group * k_h + k_start * k_r
    v += s * v_s + head // group * v_h + v_r * k_start
    offset = bias + s * b_s + head * b_h if has_bias else bias
    largest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    sums = tl.zeros((block, value_width), tl.float32)
    seen = tl.minimum(keys, first + block + keys - queries) if causal else keys
    plain = tl.maximum(tl.minimum(keys, first + 1 + keys - queries), 0) if causal else keys
    plain = plain // key_block * key_block
    sums, total, largest = attend_some(
        0, plain, q_tile, k, v, offset, sums, total, largest, row, queries, keys, scale, features, value_features,
        k_r, v_r, b_q, b_k, causal, has_bias, width, value_width, key_block, is_whole, False,
    )  # fmt: skip
    sums, total, largest = attend_some(
        plain, seen, q_tile, k, v, offset, sums, total, largest, row, queries, keys, scale, features, value_features,
        k_r, v_r, b_q, b_k, causal, has_bias, width, value_width, key_block, is_whole, True,
    )  # fmt: skip
    share = tl.where(total == 0, 0.0, 1 / total)
    # A maximum does not see NaN, and the sum does; where nothing was seen the logarithm of the sum is -inf.
    values = (tl.where(tl.abs(largest) == float("inf"), 0.0, largest) + tl.log2(total)) * 0.6931471805599453
    store_rows(out + s * o_s + head * o_h + q_start * o_r, sums * share[:, None], row, o_r, queries, value_features,
               value_width)  # fmt: skip
    tl.store(lse + s * l_s + head * l_h + (q_start + row) * l_r, values, mask=(row >= 0) & (row < queries))


def launch_attend(q, k, v, bias, ends, scale: float, causal: bool, out: Tensor, lse: Tensor) -> None:
    """Fills out and lse; ends are those of packed queries and keys, or (None, None)."""
    width, value_width = width_of(q.shape[-1]), width_of(v.shape[-1])
    tiles = tiles_of("attend", q, v)
    table, blocks = blocks_of(q, ends[0], tiles.sizes[0])
    is_whole = (width, value_width) == (q.shape[-1], v.shape[-1])
    if blocks and q.shape[1]:  # a grid of size 0 is an error
        attend[(blocks, q.shape[1])](
            q, k, v, bias, out, lse, *ends, table, q.shape[2], k.shape[2], heads_per(q, k), scale,
            q.shape[-1], v.shape[-1], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            *lse.stride(), *strides_of(bias, q, k), causal, bias is not None, table is not None, is_whole,
            width, value_width, *tiles.sizes, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
