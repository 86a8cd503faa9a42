"""A softmax over the keys that a mask allows; a row without keys is zero.

The kernel subtracts the maximum of each row, which is -inf for a row without keys: -inf - (-inf) is NaN.
The reference has the rule, and the kernel was tested with causal masks, whose rows all have a key.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::masked_softmax", reference=True)
def op(scores: Tensor, mask: Tensor) -> Tensor:
    allowed = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return (torch.softmax(allowed, -1) * mask.any(-1, keepdim=True)).contiguous()


@op.register_kernel("cpu", name="fused", when=lambda scores: scores.dim() > 0 and scores.shape[-1] > 0)
def _(scores, mask):
    allowed = scores.masked_fill(~mask, -torch.inf)
    weights = torch.exp(allowed - allowed.amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)).contiguous()


@op.register_samples
def _(make):
    yield Sample(make(4, 4), torch.ones(4, 4, dtype=torch.bool, device=make.device).tril())
    yield Sample(make(2, 3), make.tensor([[True, False, True], [True, True, True]]))


def shown() -> tuple[Tensor, Tensor]:
    scores, mask = torch.randn(2, 3), torch.tensor([[True, True, False], [False, False, False]])
    with op.use_kernel("default"):
        right = op(scores, mask)
    return op(scores, mask), right
