"""Ops whose every rule the tests of mutating change: one of ours with each kind of rule, one of torch's, a Function."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("mutated::scale", reference=True)
def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * x * weight


@scale.register_backward
def _(grad, x, weight):
    return {"x": lambda: 2 * grad * x * weight, "weight": grad * x * x}


@scale.register_jvp
def _(tangent_x, tangent_weight, x, weight):
    parts = []
    if tangent_x is not None:
        parts.append(2 * tangent_x * x * weight)
    if tangent_weight is not None:
        parts.append(tangent_weight * x * x)
    return sum(parts)


@scale.register_kernel("cpu")
def _(x, weight):
    return x * x * weight


@scale.register_samples
def _(make):
    yield Sample(make(3, 2), make(3, 2))


@custom_op("mutated::sum_rows", reference=True)
def sum_rows(x: Tensor) -> Tensor:
    return x.sum(0)


@sum_rows.register_grad("x", once_differentiable=True)
def _(grad, meta):
    return grad.expand(meta.x.shape)


@sum_rows.register_samples
def _(make):
    yield Sample(make(3))


@torch.library.custom_op("mutated::library", mutates_args=())
def library(x: Tensor, factor: float) -> Tensor:
    return x * x * factor


@library.register_fake
def _(x, factor):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]


def _backward(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0] * ctx.factor, None


library.register_autograd(_backward, setup_context=_setup)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class Inherited(Square):
    """Takes its backward from another class."""
