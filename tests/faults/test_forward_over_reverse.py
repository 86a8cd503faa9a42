"""The check `forward_over_reverse` fails a backward whose forward mode is wrong although both modes alone are right."""

import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("forward_over_reverse", lambda make: [Sample(make(4))])


class Tripled(Function):
    """g -> 3 g x², differentiated right in both modes but for the tangent of x."""

    @staticmethod
    def forward(g, x):
        return 3 * g * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        g, x = ctx.saved_tensors
        return 3 * grad * x**2, 6 * grad * g * x

    @staticmethod
    def jvp(ctx, tangent_g, tangent_x):
        g, x = ctx.saved_tensors
        return 3 * tangent_g * x**2 + 6 * g * tangent_x * x


class TripledWithoutX(Tripled):
    @staticmethod
    def jvp(ctx, tangent_g, tangent_x):
        _, x = ctx.saved_tensors
        return 3 * tangent_g * x**2


class Cubed(Function):
    rule = Tripled

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return Tripled.apply(grad, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * tangent * ctx.saved_tensors[0] ** 2


class WrongBelow(Cubed):
    @staticmethod
    def backward(ctx, grad):
        return TripledWithoutX.apply(grad, *ctx.saved_tensors)


class NoForwardMode(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_right_rules_pass():
    assert "passed" == result_of(Cubed).status
    assert "passed" == result_of(torch.sin).status


def test_wrong_tangent_of_a_gradient_fails():
    result = result_of(WrongBelow)

    assert "the tangent of the gradient of 'x', element " in result.message
    assert "it is zero everywhere: the term is dropped" == result.cause


def test_missing_forward_mode_is_skipped():
    assert "must implement the jvp function" in result_of(NoForwardMode).message
