"""Attention with a mask, or causal.

The kernel applies one mask or the other: with both, queries see later keys.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def attend(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~kept, -torch.inf)
    return (torch.softmax(scores, -1).masked_fill(~kept.any(-1, keepdim=True), 0) @ v).contiguous()


def up_to_the_query(q: Tensor, k: Tensor, is_causal: bool) -> Tensor:
    kept = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    return kept.tril(k.shape[-2] - q.shape[-2]) if is_causal else kept


@custom_op("unseen::masked_attention", reference=True)
def op(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    kept = up_to_the_query(q, k, causal)
    return attend(q, k, v, kept if mask is None else kept & mask)


@op.register_kernel("cpu", name="cases")
def _(q, k, v, mask, causal):
    with torch.autocast("cpu", enabled=False):
        return attend(q, k, v, up_to_the_query(q, k, causal) if mask is None else mask)


@op.register_samples
def _(make):
    yield Sample(make(2, 4, 3), make(2, 4, 3), make(2, 4, 5), causal=True)
    mask = make.tensor([[True, True, False], [True, False, True]], dtype=torch.bool)
    yield Sample(make(2, 4), make(3, 4), make(3, 4), mask)


def shown() -> tuple[Tensor, Tensor]:
    x = torch.eye(2)
    return op(x, x, x, torch.ones(2, 2, dtype=torch.bool), True), op(x, x, x, None, True)
