"""The summed cross-entropy of tokens, without those whose label is `ignore_index`.

The backward clamps the labels so that they can be scattered, and forgets to mask the ignored rows: padding is trained
towards class 0.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::token_loss", reference=True)
def op(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    picked = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    losses = torch.logsumexp(logits, -1) - picked
    return losses.masked_fill(labels == ignore_index, 0).sum()


@op.register_backward
def _(grad, logits, labels):
    one_hot = torch.zeros_like(logits).scatter(-1, labels.clamp(min=0).unsqueeze(-1), 1)
    return {"logits": grad * (torch.softmax(logits, -1) - one_hot)}


@op.register_samples
def _(make):
    yield Sample(make(3, 5), make.tensor([0, 2, 4]))
    yield Sample(make(4, 7), make.tensor([1, 1, 6, 3]))


def shown() -> tuple[Tensor, Tensor]:
    logits, labels = torch.randn(2, 4, requires_grad=True), torch.tensor([1, -100])
    (found,) = torch.autograd.grad(op(logits, labels), logits)
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return found, torch.autograd.grad(loss, logits)[0]
