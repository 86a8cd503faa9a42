"""The check `second_order` fails a second derivative that is silently wrong, and skips one that is refused."""

import re

import torch
from tables import each
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("second_order", lambda make: [Sample(make(4))])


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


class DetachedOutput(Function):
    """y = exp(x), saved where autograd does not see that it is the output."""

    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out.detach())
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class HalfDetached(Cubed):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x.detach() * x


class DetachedGradient(Cubed):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad.detach() * x**2


class OneOfTwo(Function):
    """y = a² b; what the gradient of 'b' computes with is detached from 'a'."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return 2 * grad * a * b, grad * a.detach() ** 2


class OnceOnly(Cubed):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


def test_right_second_derivative_passes():
    assert "passed" == result_of(Cubed).status


@each("op", [Detached, Intermediate, DetachedOutput])
def test_entry_and_cause_of_a_tensor_that_is_disconnected_are_named(op):
    result = result_of(op)

    pattern = r"'x' is wrong: d grad of x\[(\d)\] / d x\[\1\] = 0, expected \S+ by finite differences \(ratio 0\)"
    assert re.search(pattern, result.message)
    assert result.cause.startswith("what the backward computes with depends on 'x', but is disconnected from it")


def test_factor_of_a_term_that_is_missing_is_named():
    result = result_of(HalfDetached)

    assert "(ratio 0.5)" in result.message
    assert "a factor 0.5" == result.cause


def test_detached_incoming_gradient_is_named():
    result = result_of(DetachedGradient)

    assert "/ d incoming grad of output 0[" in result.message
    assert "the backward detaches its incoming gradient" == result.cause


def test_input_that_a_saved_tensor_is_detached_from_is_named():
    result = verdict("second_order", lambda make: [Sample(make(3), make(3))])(OneOfTwo)

    assert "the second derivative by 'a', 'b' is wrong: d grad of b[" in result.message
    assert "depends on 'a', but is disconnected" in result.cause


@each("op", [Detached, HalfDetached, DetachedGradient])
def test_numbers_and_cause_of_a_large_input_are_those_of_a_direction(op):
    small = verdict("second_order", lambda make: [Sample(make(4))])(op)
    large = verdict("second_order", lambda make: [Sample(make(300))])(op)

    assert "'x' is wrong: the derivative of the gradients by " in large.message
    assert " along a direction = " in large.message
    assert " by finite differences (ratio " in large.message
    assert small.cause == large.cause


def test_refusal_is_skipped_with_its_reason():
    result = result_of(OnceOnly)

    assert "skipped" == result.status
    assert "once_differentiable" in result.message


def test_op_without_gradient_is_skipped():
    assert "no output carries a gradient" == result_of(torch.Tensor.detach).message
