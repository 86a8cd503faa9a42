"""The check `second_order` fails a second derivative that is silently wrong, and skips one that is refused."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from custom_autograd.core.samples import Sample
from custom_autograd.verification.check import check


def result_of(op):
    (result,) = check(op, lambda make: [Sample(make(4))], checks=["second_order"]).results
    return result


class Cubed(Function):
    """y = x**3, differentiable as often as one likes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


class Detached(Cubed):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x.detach() ** 2


class Intermediate(Function):
    """Saves x**2, computed where autograd does not look."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x**2)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (square,) = ctx.saved_tensors
        return 3 * grad * square


class OnceOnly(Cubed):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


def test_right_second_derivative_passes():
    assert "passed" == result_of(Cubed).status


def test_detached_saved_tensor_fails():
    result = result_of(Detached)

    assert "failed" == result.status
    assert "the second derivative by 'x' is wrong" in result.message


def test_saved_intermediate_fails():
    assert "failed" == result_of(Intermediate).status


def test_refusal_is_skipped_with_its_reason():
    result = result_of(OnceOnly)

    assert "skipped" == result.status
    assert "once_differentiable" in result.message


def test_op_without_gradient_is_skipped():
    assert "no output carries a gradient" == result_of(torch.Tensor.detach).message
