"""An op that refuses float64 is looked at in the dtypes of its samples, as kernels of other libraries often do."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import Sample
from custom_autograd.verification.harness.targets import Target


class LibraryError(Exception):
    """An exception of a library, which derives from Exception alone."""


class Cubed(Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise LibraryError("float32 expected")
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


class Halved(Cubed):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 1.5 * grad * x**2


class SavesTooMuch(Cubed):
    @staticmethod
    def forward(ctx, x):
        y = Cubed.forward(ctx, x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2


class FastWave(Function):
    """A step of finite differences in float32 is longer than a period."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise LibraryError("float32 expected")
        ctx.save_for_backward(x)
        return torch.sin(250 * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 250 * grad * torch.cos(250 * x)


def cube(x):
    return x**3


def without_gradient(x):
    if x.dtype != torch.float32:
        raise LibraryError("float32 expected")
    return x.detach() ** 3


def result_of(op, name):
    return verdict(name, lambda make: [Sample(make(5, dtype=torch.float32))])(op)


@each("name", ["directional", "saved", "leaks", "non_differentiable", "determinism"])
def test_a_right_op_passes(name):
    assert "passed" == result_of(Cubed, name).status


def test_a_wrong_factor_is_found_by_finite_differences():
    result = result_of(Halved, "directional")

    assert "failed" == result.status
    assert "by finite differences (ratio 0.5)" in result.message


def test_a_slope_that_differs_from_step_to_step_proves_nothing():
    assert "passed" == result_of(FastWave, "directional").status


def with_reference(op):
    return Target("faults::cube", op.apply, op.apply, reference=cube, kernels={"": op.apply})


def test_a_wrong_factor_is_found_by_the_reference():
    assert "failed" == result_of(with_reference(Halved), "reference_gradients").status
    assert "passed" == result_of(with_reference(Cubed), "reference_gradients").status


def test_what_raises_for_other_dtypes_is_no_error():
    assert "passed" == result_of(Cubed, "low_precision").status


def test_an_output_without_a_gradient_is_found():
    assert "failed" == result_of(without_gradient, "non_differentiable").status


def test_what_is_saved_for_nothing_is_found():
    assert "failed" == result_of(SavesTooMuch, "saved").status


@torch.library.custom_op("refused_float64::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise LibraryError("float32 expected")
    return 2 * x


@torch.library.custom_op("refused_float64::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise LibraryError("float32 expected")
    return torch.as_strided(x, x.shape, (x.shape[1], 1)) * 2


doubled.register_fake(torch.empty_like)
transposed.register_fake(torch.empty_like)


def matrix_result_of(op, name):
    return verdict(name, lambda make: [Sample(make(2, 3, dtype=torch.float32, requires_grad=False))])(op)


@each("name", ["layouts", "explore"])
def test_an_op_without_a_gradient_is_looked_at_in_its_own_dtype(name):
    assert "passed" == matrix_result_of(doubled, name).status
    assert "failed" == matrix_result_of(transposed, name).status


def test_an_op_without_a_gradient_has_no_incoming_one():
    assert "skipped" == matrix_result_of(doubled, "cotangents").status
