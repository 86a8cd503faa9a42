"""The check `forward_mode` fails tangents that are zero or wrong, and skips an op that refuses."""

import torch
from torch.autograd import Function

from custom_autograd import custom_op
from custom_autograd.core.samples import Sample
from custom_autograd.verification.check import check


def result_of(op):
    (result,) = check(op, lambda make: [Sample(make(4))], checks=["forward_mode"]).results
    return result


class Squared(Function):
    """y = x**2 with both modes."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0]


class WrongTangent(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0]


class NoTangent(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@torch.library.custom_op("faults_forward_mode::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


doubled.register_autograd(lambda ctx, grad: 2 * grad)


@custom_op("faults_forward_mode::scaled", reference=True)
def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


scaled.register_jvp(lambda y, tangent_x: tangent_x * y)
scaled.register_samples(lambda make: [Sample(make(4), make(4))])


def test_right_tangent_passes():
    assert "passed" == result_of(Squared).status


def test_wrong_tangent_fails():
    result = result_of(WrongTangent)

    assert "failed" == result.status
    assert "the tangent of output 0 along 'x' is wrong" in result.message


def test_tangent_that_torch_library_drops_fails_as_silently_zero():
    result = result_of(doubled)

    assert ("failed", "the tangent of output 0 along 'x' is silently zero") == (result.status, result.message)


def test_rule_that_does_not_take_a_tangent_fails():
    (result,) = scaled.check(checks=["forward_mode"], raise_on_failure=False).results

    assert "failed" == result.status
    assert "'y' has a tangent, and the jvp does not take it" in result.message


def test_refusal_is_skipped_with_its_reason():
    result = result_of(NoTangent)

    assert "skipped" == result.status
    assert "must implement the jvp function" in result.message
