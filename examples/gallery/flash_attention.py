"""Attention by tiles: the table of scores is never stored, neither forward nor backward.

    out_i = Σ_j exp(s_ij - lse_i) v_j,    s_ij = scale q_i · k_j + bias_ij,    lse_i = log Σ_j exp(s_ij)

Shapes: q: (batch, heads, queries, features); k: (batch, kv_heads, keys, features); v: (batch, kv_heads, keys,
values), where kv_heads divides heads (grouped queries); bias broadcasts to (batch, heads, queries, keys);
out: (batch, heads, queries, values); lse: (batch, heads, queries). scale is 1 / √features unless given.
causal: the last query sees the last key (bottom-right alignment), as in FlashAttention since 2.1; PyTorch's is_causal
aligns top-left. A query that sees nothing has output zero, and lse minus infinity.
Dtypes: float64, float32, bfloat16, float16, of all alike. lse is float64 for float64, else float32, as sums are.
Source: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022, "FlashAttention", algorithms 1 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import flash_attention_grad as backward
import torch
from flash_attention_reference import attend, check, delta_of, fits_triton, repeated, scale_of, scores_of, wide
from flash_attention_triton import launch_attend
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel

NAME = "gallery::flash_attention"


@custom_op(NAME, outputs=("out", "lse"), hidden=("lse",), reference=True)
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of queries to keys and their values."""
    check(NAME, q, k, v, bias)
    out, lse = attend(scores_of(q, k, bias, scale, causal=causal), repeated(v, q))
    return out.to(q.dtype), lse


@flash_attention.register_shapes(dtypes={"lse": "wide"})
def _(bias, causal):
    # The last query sees the last key, and in a slice others are the last: no rule is to cut these keys, named j.
    m, n = ("[m]", "j") if causal else ("m", "n")
    of_bias = f"#b #(k g) #m {1 if bias and bias[-1] == 1 else n}" if bias != () else ""
    heads = f"q: b (k g) {m} [f], k: b k [{n}] [f], v: b k [{n}] [e], bias?: {of_bias}"
    return f"{heads} -> out: b (k g) m [e], lse: b (k g) m"


# Keys may be cut across ranks: what each gives is attended to in turn, with its lse as the score.
@flash_attention.register_sharding("n")
def _(out, lse, gather):
    scores, values = gather(lse).movedim(0, -1).unsqueeze(-2), gather(wide(out)).movedim(0, -2)
    whole, whole_lse = attend(scores, values)
    return {"out": whole.squeeze(-2).to(out.dtype), "lse": whole_lse.squeeze(-1)}


def without_compiler(q, k, v, bias, scale, causal) -> tuple[Tensor, Tensor]:
    """The reference, called as the C++ is."""
    return flash_attention.__wrapped__(q, k, v, bias, scale=scale, causal=causal)


attention_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "flash_attention", fallback=without_compiler)

# The features of a row lie side by side; rows, heads and batch may lie anywhere: (batch, length, heads, features)
# transposed is taken as it is.
ROWS = dict.fromkeys(("q", "k", "v"), "contiguous_rows")


@flash_attention.register_kernel("cpu", name="cpp", layouts=ROWS)
def flash_attention_cpu(q, k, v, bias, scale, causal) -> tuple[Tensor, Tensor]:
    """C++: blocks of queries in parallel, tiles of scores in the cache, products in registers."""
    check(NAME, q, k, v, bias)
    return attention_cpp(q, k, v, backward.four_dims(bias), scale_of(q, scale), causal)


@flash_attention.register_kernel("cuda", name="triton", layouts=ROWS, when=fits_triton)
def flash_attention_cuda(q, k, v, bias, scale, causal) -> tuple[Tensor, Tensor]:
    """Triton: one program per block of queries, which stays in registers."""
    out, lse = flash_attention_fake(q, k, v, bias)
    launch_attend(q, k, v, bias, (None, None), scale_of(q, scale), causal, out, lse)
    return out, lse


@flash_attention.register_fake
def flash_attention_fake(q, k, v, bias, scale=None, causal=False) -> tuple[Tensor, Tensor]:
    """Both outputs are contiguous, whatever the strides of q."""
    check(NAME, q, k, v, bias)
    statistic = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=statistic)


# out and lse are saved, and depend on the inputs: in a second backward their gradients arrive here, as grad_out and
# grad_lse. delta is, per query, what the gradient of every score loses because the weights sum to 1.
@flash_attention.register_grad("q", "k", "v")
def _(grad_out, grad_lse, q, k, v, bias, out, lse, scale, causal):
    delta = delta_of(grad_out, out, grad_lse)
    return backward.flash_attention_grad(grad_out, q, k, v, bias, lse, delta, scale, causal)


# Runs only if bias needs a gradient: the other three never pay for it.
@flash_attention.register_grad("bias")
def _(grad_out, grad_lse, q, k, v, bias, out, lse, scale, causal):
    delta = delta_of(grad_out, out, grad_lse)
    return backward.flash_attention_bias_grad(grad_out, q, k, v, bias, lse, delta, scale, causal)


for device_type in ("cpu", "cuda"):
    flash_attention.register_autocast(device_type, "lower")  # as scaled_dot_product_attention


@flash_attention.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    q, k = make(2, 2, 3, 4, low=-0.5, high=0.5), make(2, 2, 5, 4, low=-0.5, high=0.5)  # also where features are many
    yield Sample(q, k, make(2, 2, 5, 3))
    q, k, v = make(1, 4, 3, 4), make(1, 2, 5, 4), make(1, 2, 5, 4)
    yield Sample(q, k, v, make(4, 1, 5), scale=0.3).named("grouped queries, bias per key")
    q, k, v = make(1, 2, 4, 2), make(1, 1, 3, 2), make(1, 1, 3, 2)
    yield Sample(q, k, v, causal=True).named("the first query sees nothing")
    yield Sample(make(1, 1, 2, 4), make(1, 1, 0, 4), make(1, 1, 0, 4)).named("no keys")
    yield Sample(make(1, 3, 2, 4), make(1, 2, 2, 4), make(1, 2, 2, 4)).raises(
        ValueError, match="'q' must be .* with k = 2"
    )
    yield Sample(q, k, v, make(5)).raises(ValueError, match="'bias' must be .* with n = 3")


if __name__ == "__main__":
    flash_attention.check()
