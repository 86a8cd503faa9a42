"""Triton's backward kernels of flash_attention and flash_attention_varlen: of queries, of keys and values, of a bias.

Each recomputes the softmax of a tile from lse. Every gradient is summed by one program in a fixed order: no atomics.
"""

from __future__ import annotations

from flash_attention_triton import (
    blocks_of,
    find_block,
    finish_scores,
    heads_per,
    load_rows,
    store_rows,
    strides_of,
    width_of,
)
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def weigh(scores, delta_product, lse, delta, row, queries) -> tuple:
    """The softmax of a tile, queries x keys, and the gradient of its scores; lse and delta begin at the first query."""
    inside = (row >= 0) & (row < queries)
    shift = tl.load(lse + row, mask=inside, other=0) * 1.4426950408889634
    shift = tl.where(shift == float("-inf"), float("inf"), shift)  # nothing is seen: every weight is 0
    weights = tl.exp2(scores - shift[:, None])
    return weights, weights * (delta_product - tl.load(delta + row, mask=inside, other=0)[:, None])


@triton_kernel
def differentiate_queries(
    out_grad, q, k, v, bias, lse, delta, q_grad, ends, other_ends, table, queries, keys, group, scale,
    features, value_features, g_s, g_h, g_r, q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r, d_s, d_h, d_r, l_s, l_h,
    b_s, b_h, b_q, b_k, causal: tl.constexpr, has_bias: tl.constexpr, packed: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, block: tl.constexpr, key_block: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of one block of queries: over all keys that it sees."""
    s, first, q_start, queries, k_start, keys = find_block(ends, other_ends, table, queries, keys, block, packed)
    head = tl.program_id(1).to(tl.int64)
    row = first + tl.arange(0, block)
    q_tile = load_rows(q + s * q_s + head * q_h + q_start * q_r, row, q_r, queries, features, width)
    g_tile = load_rows(out_grad + s * g_s + head * g_h + q_start * g_r, row, g_r, queries, value_features, value_width)
    statistic = s * l_s + head * l_h + q_start
    sums = tl.zeros((block, width), tl.float32)
    seen = tl.minimum(keys, first + block + keys - queries) if causal else keys
    for start in range(0, seen, key_block):
        key = start + tl.arange(0, key_block)
        k_tile = load_rows(k + s * k_s + head // group * k_h + k_start * k_r, key, k_r, keys, features, width)
        v_tile = load_rows(
            v + s * v_s + head // group * v_h + k_start * v_r, key, v_r, keys, value_features, value_width
        )
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        offset = bias + s * b_s + head * b_h if has_bias else bias
        scores = finish_scores(
            product, offset, row[:, None], key[None, :], queries, keys, b_q, b_k, scale, causal, has_bias
        )
        product = tl.dot(g_tile, tl.trans(v_tile), input_precision="ieee")
        _, grads = weigh(scores, product, lse + statistic, delta + statistic, row, queries)
        sums += tl.dot(grads.to(k_tile.dtype), k_tile, input_precision="ieee")
    store_rows(q_grad + s * d_s + head * d_h + q_start * d_r, sums * scale, row, d_r, queries, features, width)


@triton_kernel
def differentiate_keys(
    out_grad, q, k, v, bias, lse, delta, k_grad, v_grad, ends, other_ends, table, queries, keys, group, scale,
    features, value_features, g_s, g_h, g_r, q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r,
    dk_s, dk_h, dk_r, dv_s, dv_h, dv_r, l_s, l_h, b_s, b_h, b_q, b_k,
    causal: tl.constexpr, has_bias: tl.constexpr, packed: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, block: tl.constexpr, query_block: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of one block of keys and values: over all queries of all heads that see them."""
    s, first, k_start, keys, q_start, queries = find_block(ends, other_ends, table, keys, queries, block, packed)
    kv_head = tl.program_id(1).to(tl.int64)
    key = first + tl.arange(0, block)
    k_tile = load_rows(k + s * k_s + kv_head * k_h + k_start * k_r, key, k_r, keys, features, width)
    v_tile = load_rows(v + s * v_s + kv_head * v_h + k_start * v_r, key, v_r, keys, value_features, value_width)
    k_sums = tl.zeros((block, width), tl.float32)
    v_sums = tl.zeros((block, value_width), tl.float32)
    # The first query that sees any of these keys, at the beginning of a block.
    seen_from = tl.maximum(first - keys + queries, 0) // query_block * query_block if causal else 0
    for head in range(kv_head * group, (kv_head + 1) * group):
        q_head = q + s * q_s + head * q_h + q_start * q_r
        g_head = out_grad + s * g_s + head * g_h + q_start * g_r
        statistic = s * l_s + head * l_h + q_start
        for start in range(seen_from, queries, query_block):
            row = start + tl.arange(0, query_block)
            q_tile = load_rows(q_head, row, q_r, queries, features, width)
            g_tile = load_rows(g_head, row, g_r, queries, value_features, value_width)
            product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
            offset = bias + s * b_s + head * b_h if has_bias else bias
            scores = finish_scores(
                product, offset, row[:, None], key[None, :], queries, keys, b_q, b_k, scale, causal, has_bias
            )
            product = tl.dot(g_tile, tl.trans(v_tile), input_precision="ieee")
            weights, grads = weigh(scores, product, lse + statistic, delta + statistic, row, queries)
            v_sums += tl.dot(tl.trans(weights.to(g_tile.dtype)), g_tile, input_precision="ieee")
            k_sums += tl.dot(tl.trans(grads.to(q_tile.dtype)), q_tile, input_precision="ieee")
    store_rows(k_grad + s * dk_s + kv_head * dk_h + k_start * dk_r, k_sums * scale, key, dk_r, keys, features, width)
    store_rows(
        v_grad + s * dv_s + kv_head * dv_h + k_start * dv_r, v_sums, key, dv_r, keys, value_features, value_width
    )


def tiles_of(q: Tensor, v: Tensor) -> tuple[int, int, int]:
    """The sides of a backward kernel's tiles, and its warps: float32 takes no tensor core, and more registers."""
    width = width_of(max(q.shape[-1], v.shape[-1]))
    side = 64 if q.element_size() == 2 and width <= 128 else 32
    return side, side, 4 if width <= 64 else 8


def launch_grads(out_grad, q, k, v, bias, ends, lse, delta, scale, causal, q_grad, k_grad, v_grad) -> None:
    """Fills the gradients of q, k and v; ends are those of packed queries and keys, or (None, None)."""
    lse, delta = lse.contiguous(), delta.contiguous()
    shapes = q.shape[2], k.shape[2], heads_per(q, k), scale, q.shape[3], v.shape[3]
    strides = [stride for tensor in (out_grad, q, k, v) for stride in tensor.stride()[:3]]
    shared = (*lse.stride()[:2], *strides_of(bias, q, k))
    choices = (causal, bias is not None, ends[0] is not None, width_of(q.shape[3]), width_of(v.shape[3]))
    block, other, warps = tiles_of(q, v)
    inputs = out_grad, q, k, v, bias, lse, delta
    table, blocks = blocks_of(q, ends[0], block)
    if blocks and q.shape[1]:  # a grid of size 0 is an error
        differentiate_queries[(blocks, q.shape[1])](
            *inputs,
            q_grad,
            *ends,
            table,
            *shapes,
            *strides,
            *q_grad.stride()[:3],
            *shared,
            *choices,
            block,
            other,
            num_warps=warps,
        )
    table, blocks = blocks_of(k, ends[1], block)
    if blocks and k.shape[1]:
        differentiate_keys[(blocks, k.shape[1])](
            *inputs, k_grad, v_grad, ends[1], ends[0], table, *shapes, *strides, *k_grad.stride()[:3],
            *v_grad.stride()[:3], *shared, *choices, block, other, num_warps=warps,
        )  # fmt: skip
