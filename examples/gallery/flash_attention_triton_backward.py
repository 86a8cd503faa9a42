"""Triton's backward kernels of flash_attention and flash_attention_varlen: of queries, and of keys and values.

Each recomputes the softmax of a tile from lse. Every gradient is summed by one program in a fixed order: no atomics.
"""

from __future__ import annotations

from flash_attention_tiles import (
    blocks_of,
    find_block,
    finish_scores,
    heads_per,
    load_rows,
    load_statistics,
    store_rows,
    strides_of,
    tiles_of,
    width_of,
)
from flash_attention_triton_keys import differentiate_keys

from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def sum_queries(
    begin, end, sums, q_tile, g_tile, shift, delta, k, v, bias, row, queries, keys, scale, features, value_features,
    k_r, v_r, b_q, b_k, causal: tl.constexpr, has_bias: tl.constexpr, width: tl.constexpr, value_width: tl.constexpr,
    key_block: tl.constexpr, is_whole: tl.constexpr, masked: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Adds what the keys from begin to end give to the gradient of queries."""
    column = tl.arange(0, key_block)
    for start in range(begin, end, key_block):
        k_tile = load_rows(k, start, column, k_r, keys, features, width, is_whole, masked)
        v_tile = load_rows(v, start, column, v_r, keys, value_features, value_width, is_whole, masked)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        scores = finish_scores(
            product, bias, row[:, None], (start + column)[None, :], queries, keys, b_q, b_k, scale, causal, has_bias,
            masked,
        )  # fmt: skip
        product = tl.dot(g_tile, tl.trans(v_tile), input_precision="ieee")
        grads = tl.exp2(scores - shift[:, None]) * (product - delta[:, None])
        sums = tl.dot(grads.to(k_tile.dtype), k_tile, sums, input_precision="ieee")
    return sums


@triton_kernel
def differentiate_queries(
    out_grad, q, k, v, bias, lse, delta, q_grad, ends, other_ends, table, queries, keys, group, scale,
    features, value_features, g_s, g_h, g_r, q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r, d_s, d_h, d_r, l_s, l_h,
    b_s, b_h, b_q, b_k, causal: tl.constexpr, has_bias: tl.constexpr, packed: tl.constexpr, is_whole: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, block: tl.constexpr, key_block: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of one block of queries: over all keys that it sees, first those that no mask hides."""
    s, first, q_start, queries, k_start, keys = find_block(
        ends, other_ends, table, queries, keys, block, packed, causal
    )
    head = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, block)
    row = first + place
    q_tile = load_rows(q + s * q_s + head * q_h + q_start * q_r, first, place, q_r, queries, features, width, is_whole,
                       True)  # fmt: skip
    g_tile = load_rows(out_grad + s * g_s + head * g_h + q_start * g_r, first, place, g_r, queries, value_features,
                       value_width, is_whole, True)  # fmt: skip
    statistic = s * l_s + head * l_h + q_start
    shift, loss = load_statistics(lse + statistic, delta + statistic, row, queries)
    k += s * k_s + head // group * k_h + k_start * k_r
    v += s * v_s + head // group * v_h + k_start * v_r
    offset = bias + s * b_s + head * b_h if has_bias else bias
    seen = tl.minimum(keys, first + block + keys - queries) if causal else keys
    plain = tl.maximum(tl.minimum(keys, first + 1 + keys - queries), 0) if causal else keys
    plain = plain // key_block * key_block
    sums = tl.zeros((block, width), tl.float32)
    sums = sum_queries(
        0, plain, sums, q_tile, g_tile, shift, loss, k, v, offset, row, queries, keys, scale, features,
        value_features, k_r, v_r, b_q, b_k, causal, has_bias, width, value_width, key_block, is_whole, False,
    )  # fmt: skip
    sums = sum_queries(
        plain, seen, sums, q_tile, g_tile, shift, loss, k, v, offset, row, queries, keys, scale, features,
        value_features, k_r, v_r, b_q, b_k, causal, has_bias, width, value_width, key_block, is_whole, True,
    )  # fmt: skip
    store_rows(q_grad + s * d_s + head * d_h + q_start * d_r, sums * scale, row, d_r, queries, features, width)


def launch_grads(out_grad, q, k, v, bias, ends, lse, delta, scale, causal, q_grad, k_grad, v_grad) -> None:
    """Fills the gradients of q, k and v; ends are those of packed queries and keys, or (None, None)."""
    lse, delta = lse.contiguous(), delta.contiguous()
    shapes = q.shape[2], k.shape[2], heads_per(q, k), scale, q.shape[3], v.shape[3]
    strides = [stride for tensor in (out_grad, q, k, v) for stride in tensor.stride()[:3]]
    shared = (*lse.stride()[:2], *strides_of(bias, q, k))
    widths = width_of(q.shape[3]), width_of(v.shape[3])
    choices = (causal, bias is not None, ends[0] is not None, widths == (q.shape[3], v.shape[3]), *widths)
    inputs = out_grad, q, k, v, bias, lse, delta
    tiles = tiles_of("queries", q, v)
    table, blocks = blocks_of(q, ends[0], tiles.sizes[0])
    if blocks and q.shape[1]:  # a grid of size 0 is an error
        differentiate_queries[(blocks, q.shape[1])](
            *inputs, q_grad, *ends, table, *shapes, *strides, *q_grad.stride()[:3], *shared, *choices, *tiles.sizes,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    tiles = tiles_of("keys", q, v)
    table, blocks = blocks_of(k, ends[1], tiles.sizes[0])
    has_rest = table is not None or q.shape[2] % tiles.sizes[1] != 0
    if blocks and k.shape[1]:
        differentiate_keys[(blocks, k.shape[1])](
            *inputs, k_grad, v_grad, ends[1], ends[0], table, *shapes, *strides, *k_grad.stride()[:3],
            *v_grad.stride()[:3], *shared, *choices, *tiles.sizes, has_rest,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
