"""A linear layer with a ReLU, fused.

The backward masks the gradient inside the branch for `x`, and the gradient of the weight relies on it.
In the first layer of a model `x` needs no gradient, so the weight gets one as if there were no ReLU.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::linear_relu")
def op(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight.mT)


op.register_autocast("cpu", "keep")


@op.register_fake
def _(x, weight):
    return x.new_empty((x.shape[0], weight.shape[0]))


@op.register_backward
def _(grad, x, weight, output, needs):
    grad_x = None
    if needs.x:
        grad = grad * (output > 0)
        grad_x = grad @ weight
    return {"x": grad_x, "weight": grad.mT @ x if needs.weight else None}


@op.register_samples
def _(make):
    yield Sample(make(5, 4), make(3, 4))
    yield Sample(make(1, 2), make(6, 2))


def shown() -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(6, 4), torch.randn(3, 4, requires_grad=True)
    (found,) = torch.autograd.grad(op(x, weight).sum(), weight)
    return found, torch.autograd.grad(torch.relu(x @ weight.mT).sum(), weight)[0]
