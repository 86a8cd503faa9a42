"""The squared error, a mean with optional weights.

Without weights the backward divides by one and not by the number of elements.
Weights were always passed in training, and left out in the first fine-tuning run.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::weighted_error")
def op(x: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    square = (x - target).square()
    return square.mean() if weights is None else (weights * square).sum() / weights.sum()


@op.register_fake
def _(x, target, weights=None):
    return x.new_empty(())


@op.register_backward
def _(grad, x, target, weights, output):
    scale = 1.0 if weights is None else weights / weights.sum()
    difference = x - target
    return {
        "x": lambda: 2 * grad * scale * difference,
        "target": lambda: -2 * grad * scale * difference,
        "weights": None if weights is None else lambda: grad * (difference.square() - output) / weights.sum(),
    }


@op.register_samples
def _(make):
    yield Sample(make(6), make(6), make(6, low=0.1, high=1.0))
    yield Sample(make(2, 3), make(2, 3), make(2, 3, low=0.1, high=1.0))


def shown() -> tuple[Tensor, Tensor]:
    x, target = torch.randn(5, requires_grad=True), torch.zeros(5)
    (found,) = torch.autograd.grad(op(x, target), x)
    return found, 2 * x.detach() / 5
