"""The check `complex` fails a backward without conj(), on real samples too."""

import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.targets import Target, TargetArgument


def result_of(call, dtype=torch.float32, reference=torch.square):
    target = Target("faults::square", call, call, (TargetArgument("x"),), reference=reference, kernels={"": call})
    return verdict("complex", lambda make: [Sample(make(4, dtype=dtype))])(target)


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0].conj()


class WithoutConj(Squared):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class RealBackward(Squared):
    @staticmethod
    def backward(ctx, grad):
        raise TypeError("'grad' is complex")


def real_only(x):
    if x.is_complex():
        raise TypeError("'x' is complex")
    return x * x


def test_conjugate_derivative_passes():
    assert "passed" == result_of(Squared.apply).status


def test_missing_conj_fails_on_a_complex_sample():
    result = result_of(WithoutConj.apply, torch.complex64, None)

    assert "complex gradient of 'x' along a direction is " in result.message
    assert "let the kernel refuse complex numbers" in result.message
    assert "failed" == result.status


def test_missing_conj_is_advice_on_a_real_sample():
    result = result_of(WithoutConj.apply)

    assert "skipped" == result.status
    assert result.message.startswith(
        "no sample is complex, so this is advice: complex gradient of 'x' along a direction"
    )


def test_backward_that_refuses_complex_numbers_is_advice_on_a_real_sample():
    result = result_of(RealBackward.apply)

    assert "skipped" == result.status
    assert result.message == (
        "no sample is complex, so this is advice: the backward raises TypeError: 'grad' is complex; "
        "let the kernel refuse complex numbers too"
    )
    assert "error" == result_of(RealBackward.apply, torch.complex64, None).status


def test_op_that_refuses_complex_numbers_is_skipped():
    assert "the op takes no complex numbers: TypeError: 'x' is complex" == result_of(real_only).message


def test_real_sample_of_an_op_without_reference_is_skipped():
    assert "skipped" == result_of(WithoutConj.apply, reference=None).status
