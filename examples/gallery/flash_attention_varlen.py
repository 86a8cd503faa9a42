"""flash_attention of sequences of different lengths, packed one after the other: no padding is stored or computed.

    out, lse of rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] = flash_attention of those queries
                                                              to keys cu_seqlens_k[i] to cu_seqlens_k[i + 1]

Shapes: q: (queries, heads, features); k: (keys, kv_heads, features); v: (keys, kv_heads, values);
cu_seqlens_q, cu_seqlens_k: (sequences + 1,), int64 or int32, rising from 0 to the number of rows;
out: (queries, heads, values); lse: (heads, queries). Heads, scale, causal and dtypes: as in flash_attention.py.
A GPU does not look at cu_seqlens, which would make the host wait: rows of no sequence have output zero there.
Source: Dao 2023, "FlashAttention-2", and the interface of its flash_attn_varlen_func.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import flash_attention_varlen_grad as backward
import torch
from flash_attention_reference import PACKED, accepting, attend, check, delta_of, fits_triton, repeated, scale_of
from flash_attention_triton import launch_attend
from flash_attention_varlen_grad import check_ends, offsets, packed, packed_scores
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel

NAME = "gallery::flash_attention_varlen"


@custom_op(
    NAME,
    outputs=("out", "lse"),
    hidden=("lse",),
    reference=True,
    shapes=(
        "q: [m] (k g) [f], k: [n] k [f], v: [n] k [e], cu_seqlens_q: [s], cu_seqlens_k: [s]"
        " -> out: [m] (k g) [e], lse: (k g) [m]"
    ),
    dtypes={"lse": "wide"},
)
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention within packed sequences."""
    check_ends(NAME, q, cu_seqlens_q, cu_seqlens_k)
    check(NAME, q, k, v, dims=PACKED)
    rows, values = packed(q, v)
    scores = packed_scores(q, k, cu_seqlens_q, cu_seqlens_k, scale, causal)
    out, lse = attend(scores, repeated(values, rows))
    return out[0].transpose(0, 1).contiguous().to(q.dtype), lse[0]


def without_compiler(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal) -> tuple[Tensor, Tensor]:
    """The reference, called as the C++ is."""
    return flash_attention_varlen.__wrapped__(q, k, v, cu_seqlens_q, cu_seqlens_k, scale=scale, causal=causal)


SOURCE = Path(__file__).with_name("flash_attention.cpp")
attention_cpp = cpp_kernel(SOURCE, "flash_attention_varlen", fallback=without_compiler)
ROWS = dict.fromkeys(("q", "k", "v"), "contiguous_rows")


@flash_attention_varlen.register_kernel("cpu", name="cpp", layouts=ROWS)
def flash_attention_varlen_cpu(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal) -> tuple[Tensor, Tensor]:
    """C++: blocks of queries of all sequences in parallel."""
    flash_attention_varlen_fake(q, k, v, cu_seqlens_q, cu_seqlens_k)
    queries = offsets(NAME, "cu_seqlens_q", cu_seqlens_q, q.shape[0])
    keys = offsets(NAME, "cu_seqlens_k", cu_seqlens_k, k.shape[0])
    return attention_cpp(q, k, v, queries, keys, scale_of(q, scale), causal)


@flash_attention_varlen.register_kernel("cuda", name="triton", layouts=ROWS, when=fits_triton)
def flash_attention_varlen_cuda(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal) -> tuple[Tensor, Tensor]:
    """Triton: one program per block of queries; which sequence it is in stands in a table made on the device."""
    out, lse = flash_attention_varlen_fake(q, k, v, cu_seqlens_q, cu_seqlens_k)
    ends = tuple(ends.to(torch.int64).contiguous() for ends in (cu_seqlens_q, cu_seqlens_k))
    out.zero_()
    lse.fill_(-torch.inf)
    launch_attend(*packed(q, k, v), None, ends, scale_of(q, scale), causal, *packed(out), lse[None])
    return out, lse


@flash_attention_varlen.register_fake
def flash_attention_varlen_fake(q, k, v, cu_seqlens_q, cu_seqlens_k, scale=None, causal=False) -> tuple[Tensor, Tensor]:
    """Both outputs are contiguous, whatever the strides of q."""
    check_ends(NAME, q, cu_seqlens_q, cu_seqlens_k)
    check(NAME, q, k, v, dims=PACKED)
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.promote_types(q.dtype, torch.float32))
    return q.new_empty((*q.shape[:-1], v.shape[-1])), lse


# As in flash_attention: out and lse depend on the inputs, and in a second backward their gradients arrive here.
@flash_attention_varlen.register_grad("q", "k", "v")
def _(grad_out, grad_lse, q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, scale, causal):
    delta = delta_of(grad_out, out, grad_lse.mT).mT
    return backward.flash_attention_varlen_grad(
        grad_out, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, scale, causal
    )


for device_type in ("cpu", "cuda"):
    flash_attention_varlen.register_autocast(device_type, "lower")  # as scaled_dot_product_attention


@flash_attention_varlen.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    queries, keys = make.tensor([0, 1, 1, 4]), make.tensor([0, 2, 3, 5])  # the second has no query
    q, k, v = make(4, 2, 3), make(5, 1, 3), make(5, 1, 2)
    plain, causal = Sample(q, k, v, queries, keys), Sample(q, k, v, queries, keys.int(), scale=0.7, causal=True)
    for sample in (plain, causal.named("the first of three queries sees nothing")):
        yield accepting(sample, flash_attention_varlen)
    bad = make.tensor([0, 1, 9, 4])
    yield Sample(q, k, v, bad, keys).raises(ValueError, match="'cu_seqlens_q' must rise from 0 to", on="cpu")


if __name__ == "__main__":
    flash_attention_varlen.check()
