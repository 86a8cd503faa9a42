"""The check `linearity` fails a backward that is not linear in its gradient, which gradcheck accepts."""

import pytest
from torch.autograd import Function

from custom_autograd.core.samples import Sample
from custom_autograd.verification.check import check


def result_of(op, name="linearity"):
    (result,) = check(op, lambda make: [Sample(make(4, 3))], checks=[name]).results
    return result


class Doubled(Function):
    """y = 2 x, differentiated right."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Absolute(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.abs()


class Clipped(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.clamp(-1, 1)


class Rounded(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.bfloat16().to(grad.dtype)


class Normalised(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad / grad.norm().clamp_min(1e-30)


class Constant(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad + 1


def test_linear_backward_passes():
    assert "passed" == result_of(Doubled).status


@pytest.mark.parametrize("op", [Absolute, Clipped, Rounded, Normalised, Constant], ids=lambda op: op.__name__)
def test_backward_that_is_not_linear_fails(op):
    result = result_of(op)

    assert "failed" == result.status
    assert "not linear in the incoming gradient" in result.message
    assert "gradient of 'x'" in result.message


@pytest.mark.parametrize("op", [Absolute, Clipped], ids=lambda op: op.__name__)
def test_gradcheck_alone_accepts_it(op):
    """Why this check exists; if this fails, torch has become stricter."""
    assert "passed" == result_of(op, "gradcheck").status or "batched" in result_of(op, "gradcheck").message


def test_affine_backward_fails_at_zero():
    assert "vjp(0)" in result_of(Constant).message
