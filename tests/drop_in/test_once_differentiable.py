"""Backwards marked with PyTorch's `once_differentiable`: what would be a silent zero or constant there raises."""

import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd.function import once_differentiable

from custom_autograd import GradientError, custom_op


@custom_op("once_drop_in::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@custom_op("once_drop_in::product", mutates_args=())
def product(factors: dict[str, Tensor]) -> Tensor:
    return factors["a"] * factors["b"]


for op in (cube, product):
    op.register_fake(lambda x: torch.empty_like(x["a"] if isinstance(x, dict) else x))


@once_differentiable
def cube_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return 3 * x * x * grad


@once_differentiable
def product_backward(ctx, grad):
    return ({"a": grad * ctx.factors["b"], "b": grad * ctx.factors["a"]},)


cube.register_autograd(cube_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def keep_factors(ctx, inputs, output):
    (ctx.factors,) = inputs


product.register_autograd(product_backward, setup_context=keep_factors)

CALLS = {"saved": (cube, 3.0), "kept in a container": (lambda x: product({"a": x, "b": x}), 2.0)}


@each("call, slope", CALLS.values(), CALLS)
def test_first_derivatives_are_right(call, slope):
    x = torch.ones(2, requires_grad=True)

    assert [slope] * 2 == torch.autograd.grad(call(x).sum(), x)[0].tolist()
    assert [slope] * 2 == torch.func.grad(lambda x: call(x).sum())(x.detach()).tolist()


@each("call, slope", CALLS.values(), CALLS)
def test_a_second_derivative_along_a_constant_raises(call, slope):
    x = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)

    assert [slope] * 2 == first.tolist()
    with pytest.raises(GradientError, match="declared once-differentiable, and a second derivative is requested"):
        torch.autograd.grad(first.sum() + x.sum(), x)


@each("call, slope", CALLS.values(), CALLS)
def test_forward_mode_raises(call, slope):
    with pytest.raises(GradientError, match="cannot derive forward mode from a backward that is once-differentiable"):
        torch.func.jvp(call, (torch.ones(2),), (torch.ones(2),))


def test_forward_mode_is_reported_as_missing():
    assert cube.capabilities()["jvp"] == "missing: the backward is once-differentiable"
