"""Triton's kernel for the gradients of keys and values: one block of them against all queries that see it.

Tiles are keys x queries: what is summed over queries is multiplied as it comes, without a transposition.
"""

from __future__ import annotations

from flash_attention_tiles import find_block, finish_scores, load_rows, load_statistics, store_rows

from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def differentiate_keys(
    out_grad, q, k, v, bias, lse, delta, k_grad, v_grad, ends, other_ends, table, queries, keys, group, scale,
    features, value_features, g_s, g_h, g_r, q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r,
    dk_s, dk_h, dk_r, dv_s, dv_h, dv_r, l_s, l_h, b_s, b_h, b_q, b_k,
    causal: tl.constexpr, has_bias: tl.constexpr, packed: tl.constexpr, is_whole: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, block: tl.constexpr, query_block: tl.constexpr,
    has_rest: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of one block of keys and values: over all queries of all heads that see them."""
    s, first, k_start, keys, q_start, queries = find_block(ends, other_ends, table, keys, queries, block, packed, False)
    kv_head = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, block)
    key = first + place
    k_tile = load_rows(k + s * k_s + kv_head * k_h + k_start * k_r, first, place, k_r, keys, features, width, is_whole,
                       True)  # fmt: skip
    v_tile = load_rows(v + s * v_s + kv_head * v_h + k_start * v_r, first, place, v_r, keys, value_features,
                       value_width, is_whole, True)  # fmt: skip
    k_sums = tl.zeros((block, width), tl.float32)
    v_sums = tl.zeros((block, value_width), tl.float32)
    # From which queries on some of these keys are seen, at the beginning of a block; and all of them.
    some = tl.maximum(first - keys + queries, 0) // query_block * query_block if causal else 0
    every = first + block - 1 - keys + queries
    other = tl.arange(0, query_block)
    for head in range(kv_head * group, (kv_head + 1) * group):
        q_head = q + s * q_s + head * q_h + q_start * q_r
        g_head = out_grad + s * g_s + head * g_h + q_start * g_r
        statistic = s * l_s + head * l_h + q_start
        offset = bias + s * b_s + head * b_h if has_bias else bias
        # Rows that are not there (has_rest) are loaded as zeros, and infinity times zero is NaN; keys are not stored.
        for start in range(some, queries, query_block):
            row = start + other
            q_tile = load_rows(q_head, start, other, q_r, queries, features, width, is_whole, True)
            product = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
            scores = finish_scores(
                product, offset, row[None, :], key[:, None], queries, keys, b_q, b_k, scale, causal, has_bias, False
            )
            if causal:  # noqa: SIM102 - this one is decided when Triton compiles
                if start < every:  # further on all of these keys are seen
                    scores = tl.where(key[:, None] <= row[None, :] + (keys - queries), scores, float("-inf"))
            if has_rest:
                scores = tl.where((row < queries)[None, :], scores, float("-inf"))
            shift, loss = load_statistics(lse + statistic, delta + statistic, row, queries)
            weights = tl.exp2(scores - shift[None, :])
            g_tile = load_rows(g_head, start, other, g_r, queries, value_features, value_width, is_whole, True)
            v_sums = tl.dot(weights.to(g_tile.dtype), g_tile, v_sums, input_precision="ieee")
            product = tl.dot(v_tile, tl.trans(g_tile), input_precision="ieee")
            if has_rest:
                product = tl.where((row < queries)[None, :], product, 0)
            grads = weights * (product - loss[None, :])
            k_sums = tl.dot(grads.to(q_tile.dtype), q_tile, k_sums, input_precision="ieee")
    store_rows(k_grad + s * dk_s + kv_head * dk_h + k_start * dk_r, k_sums * scale, key, dk_r, keys, features, width)
    store_rows(
        v_grad + s * dv_s + kv_head * dv_h + k_start * dv_r, v_sums, key, dv_r, keys, value_features, value_width
    )
