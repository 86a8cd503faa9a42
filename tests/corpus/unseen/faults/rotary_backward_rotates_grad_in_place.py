"""Rotary position embedding of interleaved pairs.

The backward rotates the incoming gradient in its own memory, as the forward does with a fresh buffer.
Whoever else uses that gradient, such as a residual branch or a hook, sees the rotated one.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def rotate_(x: Tensor, angles: Tensor) -> Tensor:
    even, odd, cos, sin = x[..., ::2], x[..., 1::2], angles.cos(), angles.sin()
    rotated = even * cos - odd * sin, even * sin + odd * cos
    even.copy_(rotated[0])
    odd.copy_(rotated[1])
    return x


@custom_op("unseen::rotary", non_differentiable=("angles",))
def op(x: Tensor, angles: Tensor) -> Tensor:
    return rotate_(x.clone(memory_format=torch.contiguous_format), angles)


@op.register_fake
def _(x, angles):
    return x.new_empty(x.shape)


@op.register_backward
def _(grad, angles):
    return {"x": rotate_(grad.contiguous(), -angles)}


@op.register_samples
def _(make):
    yield Sample(make(5, 6), make(5, 3, requires_grad=False))
    yield Sample(make(2, 3, 8), make(3, 4, requires_grad=False))


def shown() -> tuple[Tensor, Tensor]:
    x, grad = torch.randn(2, 4, requires_grad=True), torch.ones(2, 4)
    torch.autograd.grad(op(x, torch.ones(2, 2)), x, grad)
    return grad, torch.ones(2, 4)
