"""Triton's kernel for the gradient of flash_attention's bias: one program per tile of it, whatever was broadcast."""

from __future__ import annotations

from flash_attention_tiles import finish_scores, heads_per, load_rows, load_statistics, strides_of, width_of

from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def differentiate_bias(
    out_grad, q, k, v, bias, lse, delta, grad, sequences, heads, queries, keys, group, scale, features,
    value_features, g_s, g_h, g_r, q_s, q_h, q_r, k_s, k_h, k_r, v_s, v_h, v_r, l_s, l_h, b_s, b_h, b_q, b_k,
    o_s, o_h, o_q, o_k, per_sequence: tl.constexpr, per_head: tl.constexpr, per_query: tl.constexpr,
    per_key: tl.constexpr, causal: tl.constexpr, width: tl.constexpr, value_width: tl.constexpr,
    block: tl.constexpr, key_block: tl.constexpr,
) -> None:  # fmt: skip
    """Sums the gradient of the scores over every sequence, head, query and key that shares a number of this tile."""
    query_tiles = tl.cdiv(queries, block) if per_query else 1
    key_tiles = tl.cdiv(keys, key_block) if per_key else 1
    number = tl.program_id(0)
    own_sequence = (number // (query_tiles * key_tiles)).to(tl.int64)
    own_head = tl.program_id(1).to(tl.int64)
    own_query = number // key_tiles % query_tiles * block
    own_key = number % key_tiles * key_block
    sums = tl.zeros((block, key_block), tl.float32)
    for s in range(own_sequence if per_sequence else 0, own_sequence + 1 if per_sequence else sequences):
        for head in range(own_head if per_head else 0, own_head + 1 if per_head else heads):
            place = tl.full((), s, tl.int64), tl.full((), head, tl.int64)
            statistic = place[0] * l_s + place[1] * l_h
            for start in range(own_query, own_query + 1 if per_query else queries, block):
                row = start + tl.arange(0, block)
                q_tile = load_rows(
                    q + place[0] * q_s + place[1] * q_h, 0, row, q_r, queries, features, width, False, True
                )
                g_head = out_grad + place[0] * g_s + place[1] * g_h
                g_tile = load_rows(g_head, 0, row, g_r, queries, value_features, value_width, False, True)
                shift, loss = load_statistics(lse + statistic, delta + statistic, row, queries)
                for key_start in range(own_key, own_key + 1 if per_key else keys, key_block):
                    key = key_start + tl.arange(0, key_block)
                    k_head = k + place[0] * k_s + place[1] // group * k_h
                    k_tile = load_rows(k_head, 0, key, k_r, keys, features, width, False, True)
                    v_head = v + place[0] * v_s + place[1] // group * v_h
                    v_tile = load_rows(v_head, 0, key, v_r, keys, value_features, value_width, False, True)
                    product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
                    offset = bias + place[0] * b_s + place[1] * b_h
                    scores = finish_scores(
                        product, offset, row[:, None], key[None, :], queries, keys, b_q, b_k, scale, causal, True, True
                    )
                    product = tl.dot(g_tile, tl.trans(v_tile), input_precision="ieee")
                    sums += tl.exp2(scores - shift[:, None]) * (product - loss[:, None])
    row = own_query + tl.arange(0, block)
    key = own_key + tl.arange(0, key_block)
    if not per_query:
        sums = tl.sum(sums, 0)[None, :]
        row = tl.zeros((1,), tl.int32)
        queries = 1
    if not per_key:
        sums = tl.sum(sums, 1)[:, None]
        key = tl.zeros((1,), tl.int32)
        keys = 1
    address = grad + own_sequence * o_s + own_head * o_h + row.to(tl.int64)[:, None] * o_q + key[None, :] * o_k
    tl.store(address, sums.to(grad.dtype.element_ty), mask=(row < queries)[:, None] & (key < keys)[None, :])


def launch_bias_grad(out_grad, q, k, v, bias, lse, delta, scale, causal, grad) -> None:
    """Fills the gradient of a bias of 4 dimensions."""
    lse, delta = lse.contiguous(), delta.contiguous()
    sequences, heads, queries, keys = bias.shape
    width = width_of(max(q.shape[-1], v.shape[-1]))
    block = key_block = 64 if q.element_size() == 2 and width <= 128 else 32
    programs = sequences * -(-queries // block) * -(-keys // key_block)
    strides = [stride for tensor in (out_grad, q, k, v) for stride in tensor.stride()[:3]]
    full = (*q.shape[:3], k.shape[2])
    if programs and heads:  # a grid of size 0 is an error
        differentiate_bias[(programs, heads)](
            out_grad, q, k, v, bias, lse, delta, grad, *full, heads_per(q, k), scale, q.shape[3], v.shape[3], *strides,
            *lse.stride()[:2], *strides_of(bias, q, k), *grad.stride(), *(n > 1 for n in bias.shape), causal,
            width_of(q.shape[3]), width_of(v.shape[3]), block, key_block, num_warps=4 if width <= 64 else 8,
        )  # fmt: skip
