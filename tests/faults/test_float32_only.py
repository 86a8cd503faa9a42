"""An op that does not take float64 is verified in float32, whether its forward or its backward refuses it."""

import functools

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample


def refusing(where, *, factor=2.0, is_sum_wide=True):
    """Return a Function that refuses float64 in one of its methods, and whose gradient has a factor."""

    def refuse(x, here):
        if x.dtype == torch.float64 and here == where:
            raise KeyError(x.dtype)

    class Square(Function):
        @staticmethod
        def forward(ctx, x, w):
            refuse(x, "forward")
            ctx.save_for_backward(x, w)
            return x * x * w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            refuse(x, "backward")
            terms = x * x * grad
            return factor * x * w * grad, terms.sum(0) if is_sum_wide else functools.reduce(torch.add, terms)

    return Square


SAMPLES = [Sample(torch.linspace(-1, 2, 12).view(4, 3).requires_grad_(), torch.tensor([1.0, -2, 3]).requires_grad_())]


@each("where", ["forward", "backward"])
@each("check", ["directional", "gradcheck"])
def test_a_wrong_gradient_is_found(check, where):
    result = verdict(check, SAMPLES)(refusing(where, factor=2.1))
    assert result.status == "failed"
    assert "ratio 1.05" in result.message


@each("where", ["forward", "backward"])
@each("check", ["directional", "gradcheck", "explore", "layouts", "second_order", "saved", "leaks", "uninitialised"])
def test_a_right_gradient_is_accepted(check, where):
    result = verdict(check, SAMPLES)(refusing(where))
    assert result.status == "passed", result.message


def test_sums_in_half_precision_are_found():
    assert verdict("low_precision", SAMPLES)(refusing("forward")).status == "passed"
    result = verdict("low_precision", SAMPLES)(refusing("forward", is_sum_wide=False))
    assert result.status == "failed"
    assert "against float32" in result.message


def test_a_backward_that_knows_fewer_dtypes_than_the_forward_is_told_once():
    result = verdict("contract", SAMPLES)(refusing("backward"))
    assert result.status == "failed"
    assert result.message == "in float64, which the forward takes, the backward raises KeyError: torch.float64"
    assert verdict("contract", SAMPLES)(refusing("forward")).status == "passed"
