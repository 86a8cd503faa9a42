"""The check `linearity` fails a backward that is not linear in its gradient, which gradcheck accepts."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample


def result_of(op, name="linearity"):
    return verdict(name, lambda make: [Sample(make(4, 3))])(op)


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


class ClippedFarOut(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.clamp(-1e200, 1e200)


class FlushesToZero(Doubled):
    """As XLA does on a CPU, and code that is compiled with -ffast-math."""

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * (grad.abs() >= torch.finfo(grad.dtype).tiny)


class WrongWhereSubnormal(Doubled):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad + grad * (grad.abs() < torch.finfo(grad.dtype).tiny)


class Squares(Doubled):
    """Overflows on the way to a finite gradient: no fault of the formula."""

    @staticmethod
    def backward(ctx, grad):
        return 2 * (grad * grad) / (grad + (grad == 0))


class InFloat32(Doubled):
    """Has less range than its inputs."""

    @staticmethod
    def backward(ctx, grad):
        return (2 * grad.float()).to(grad.dtype)


def test_linear_backward_passes():
    assert "passed" == result_of(Doubled).status


@each("op", [Absolute, Clipped, Rounded, Normalised, Constant])
def test_backward_that_is_not_linear_fails(op):
    result = result_of(op)

    assert "failed" == result.status
    assert "not linear in the incoming gradient" in result.message
    assert "gradient of 'x'" in result.message


@each("op", [Absolute, Clipped])
def test_gradcheck_alone_accepts_it(op):
    """Why this check exists; if this fails, torch has become stricter."""
    assert "passed" == result_of(op, "gradcheck").status or "batched" in result_of(op, "gradcheck").message


def test_affine_backward_fails_at_zero():
    assert "vjp(0)" in result_of(Constant).message


@each(("op", "identity"), [(ClippedFarOut, "vjp(1e+300 u) / 1e+300"), (WrongWhereSubnormal, "vjp(5.56268e-309 u)")])
def test_backward_that_is_not_linear_far_out_fails(op, identity):
    result = result_of(op)

    assert "failed" == result.status
    assert identity in result.message


def test_backward_that_flushes_subnormal_numbers_passes_and_says_so():
    result = result_of(FlushesToZero)

    assert "passed" == result.status
    assert "gradients of less than 2.2e-308 become zero" in result.message


@each("op", [Squares, InFloat32])
def test_backward_that_overflows_far_out_is_not_judged_there(op):
    assert "passed" == result_of(op).status
