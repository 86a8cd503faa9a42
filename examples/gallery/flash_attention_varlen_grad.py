"""The gradients of flash_attention_varlen as an op of its own, and packed sequences in PyTorch operations.

The formulas are those of flash_attention_grad.py, over the keys and queries of each sequence.
Shapes: as in flash_attention_varlen.py; lse, delta: (heads, queries), in the dtype of sums.
Source: Dao et al. 2022, "FlashAttention", appendix B.2 and algorithm 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from flash_attention_reference import PACKED, accepting, check_grads, fits_triton, gradients, scale_of, scores_of
from flash_attention_triton_backward import launch_grads
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel

NAME = "gallery::flash_attention_varlen_grad"


def check_ends(op: str, q: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    """Raises a ValueError where the ends cannot be those of packed sequences, whatever they hold."""
    for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        fits = ends.dim() == 1 and ends.shape == cu_seqlens_q.shape and ends.shape[0] > 0
        if not fits or ends.dtype not in (torch.int64, torch.int32) or ends.device != q.device:
            text = f"'{name}' must be int64 or int32 of shape (sequences + 1,), as the other, on the device of 'q'"
            raise ValueError(f"{op}: {text}; found {ends.dtype} of shape {tuple(ends.shape)}")


def offsets(op: str, name: str, ends: Tensor, rows: int) -> Tensor:
    """What the C++ reads; a ValueError where the ends do not rise from 0 to the number of rows."""
    if ends[0] != 0 or ends[-1] != rows or bool((ends.diff() < 0).any()):
        raise ValueError(f"{op}: '{name}' must rise from 0 to the number of rows, {rows}; found {ends.tolist()[:20]}")
    return ends.to(torch.int64).contiguous()


def packed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """(rows, heads, features) as one sequence: (1, heads, rows, features)."""
    return tuple(tensor.transpose(0, 1).unsqueeze(0) for tensor in tensors)


def rising(ends: Tensor, rows: int) -> Tensor:
    """The ends; an error where they do not rise from 0 to the number of rows, also under vmap, which sees no value."""
    steps = ends.diff(prepend=ends.new_zeros(1), append=ends.new_full((1,), rows))
    is_wrong = (steps < 0).any() | (steps[0] != 0) | (steps[-1] != 0)
    return ends + ends.new_zeros(1).gather(0, is_wrong.long().view(1))  # an index out of range raises there too


def packed_scores(q, k, cu_seqlens_q, cu_seqlens_k, scale, causal) -> Tensor:
    """The scores of all rows; minus infinity between sequences, and where causality hides."""
    cu_seqlens_q, cu_seqlens_k = rising(cu_seqlens_q, q.shape[0]), rising(cu_seqlens_k, k.shape[0])
    row, key = (torch.arange(tensor.shape[0], device=q.device) for tensor in (q, k))
    of_row = torch.searchsorted(cu_seqlens_q, row, right=True)
    of_key = torch.searchsorted(cu_seqlens_k, key, right=True)
    seen = of_row.unsqueeze(1) == of_key
    if causal:
        end = of_row.clamp(max=cu_seqlens_q.numel() - 1)  # counted from the ends: the last query sees the last key
        seen = seen & (key - cu_seqlens_k[end].unsqueeze(1) <= (row - cu_seqlens_q[end]).unsqueeze(1))
    return scores_of(*packed(q, k), None, scale, causal=False).masked_fill(~seen, -torch.inf)


@custom_op(
    NAME,
    outputs=("q_grad", "k_grad", "v_grad"),
    reference=True,
    shapes=(
        "out_grad: [m] (k g) [e], q: [m] (k g) [f], k: [n] k [f], v: [n] k [e], cu_seqlens_q: [s], "
        "cu_seqlens_k: [s], lse: (k g) [m], delta: (k g) [m] -> q_grad: m (k g) f, k_grad: n k f, "
        "v_grad: n k e"
    ),
    dtypes={"q_grad": "q", "k_grad": "k", "v_grad": "v"},
)
def flash_attention_varlen_grad(
    out_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of flash_attention_varlen with respect to q, k and v."""
    check_ends(NAME, q, cu_seqlens_q, cu_seqlens_k)
    check_grads(NAME, out_grad, q, k, v, None, lse, delta, PACKED)
    scores = packed_scores(q, k, cu_seqlens_q, cu_seqlens_k, scale, causal)
    grads = gradients(scores, *packed(out_grad, q, k, v), lse[None], delta[None], scale_of(q, scale))
    q_grad, k_grad, v_grad = (grad[0].transpose(0, 1).contiguous() for grad in grads)
    return q_grad, k_grad, v_grad


SOURCE = Path(__file__).with_name("flash_attention.cpp")
grad_cpp = cpp_kernel(SOURCE, "flash_attention_varlen_grad", fallback=flash_attention_varlen_grad.__wrapped__)

ROWS = dict.fromkeys(("out_grad", "q", "k", "v"), "contiguous_rows")


@flash_attention_varlen_grad.register_kernel("cpu", name="cpp", layouts=ROWS)
def flash_attention_varlen_grad_cpu(
    out_grad, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, scale, causal
) -> tuple[Tensor, ...]:
    """C++: heads of sequences in parallel."""
    flash_attention_varlen_grad_fake(out_grad, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta)
    queries = offsets(NAME, "cu_seqlens_q", cu_seqlens_q, q.shape[0])
    keys = offsets(NAME, "cu_seqlens_k", cu_seqlens_k, k.shape[0])
    return grad_cpp(out_grad, q, k, v, queries, keys, lse, delta, scale_of(q, scale), causal)


@flash_attention_varlen_grad.register_kernel("cuda", name="triton", layouts=ROWS, when=fits_triton)
def flash_attention_varlen_grad_cuda(
    out_grad, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, scale, causal
) -> tuple[Tensor, ...]:
    """Triton: one kernel per block of queries, one per block of keys."""
    grads = flash_attention_varlen_grad_fake(out_grad, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta)
    for grad in grads:
        grad.zero_()  # rows of no sequence
    ends = tuple(ends.to(torch.int64).contiguous() for ends in (cu_seqlens_q, cu_seqlens_k))
    inputs = (*packed(out_grad, q, k, v), None, ends, lse[None], delta[None])
    launch_grads(*inputs, scale_of(q, scale), causal, *packed(*grads))
    return grads


@flash_attention_varlen_grad.register_fake
def flash_attention_varlen_grad_fake(
    out_grad, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, scale=None, causal=False
) -> tuple[Tensor, ...]:
    """All contiguous."""
    check_ends(NAME, q, cu_seqlens_q, cu_seqlens_k)
    check_grads(NAME, out_grad, q, k, v, None, lse, delta, PACKED)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@flash_attention_varlen_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    queries, keys = make.tensor([0, 1, 4]), make.tensor([0, 2, 5])
    statistics = make(2, 4), make(2, 4)
    # The statistics are of no forward pass: with a larger scale, values of 256 features come near the largest float.
    sample = Sample(make(4, 2, 3), make(4, 2, 2), make(5, 1, 2), make(5, 1, 3), queries, keys, *statistics, 0.002, True)
    yield accepting(sample, flash_attention_varlen_grad)


if __name__ == "__main__":
    flash_attention_varlen_grad.check()
