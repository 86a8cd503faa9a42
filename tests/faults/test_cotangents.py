"""The check `cotangents` fails a backward that misreads, misses or writes to its incoming gradient."""

import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("cotangents", lambda make: [Sample(make(4, 3))])


class Doubled(Function):
    """y = 2 x, differentiated right."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class IgnoresStrides(Doubled):
    """Reads memory in order, as a kernel does that takes data_ptr() of a gradient."""

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.as_strided(grad.shape, (grad.shape[1], 1)) if grad.stride() != (0, 0) else 2 * grad


class TwoOutputs(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first + 3 * second


class TwoOutputsSomeUndefined(TwoOutputs):
    @staticmethod
    def backward(ctx, first, second):
        grads = [scale * grad for scale, grad in ((2, first), (3, second)) if grad is not None]
        return sum(grads)


def test_right_backward_passes():
    assert "passed" == result_of(Doubled).status


def test_backward_that_ignores_strides_fails():
    result = result_of(IgnoresStrides)

    assert "failed" == result.status
    assert "a transposed cotangent: gradient of 'x'[" in result.message


def test_undefined_gradient_that_crashes_fails():
    result = result_of(TwoOutputs)

    assert "failed" == result.status
    assert "no cotangent of result 0: the backward raises TypeError" in result.message


def test_undefined_gradient_that_is_met_passes():
    assert "passed" == result_of(TwoOutputsSomeUndefined).status


def test_op_without_gradient_fails():
    assert "no output carries a gradient" == result_of(torch.Tensor.detach).message
