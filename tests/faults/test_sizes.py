"""The check `sizes` fails an op that is wrong for sizes that its samples do not have."""

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from custom_autograd.checking import check
from custom_autograd.checks.targets import Target, TargetArgument
from custom_autograd.core.samples import Sample


def result_of(call):
    arguments = (TargetArgument("x"), TargetArgument("w"))
    target = Target("faults::scale", call, call, arguments, reference=torch.mul, kernels={"": call})
    (result,) = check(target, lambda make: [Sample(make(4, 8), make(8))], checks=["sizes"]).results
    return result


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum_to_size(w.shape)


class TailUnwritten(Scaled):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        out = torch.zeros_like(x)
        out.view(-1)[:256] = (x * w).view(-1)[:256]
        return out


class NoEmpty(Scaled):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w + 0 * [*x.shape, 1][0] / x.shape[0]


class WrongForOneRow(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum_to_size(w.shape) * (1 if len(x) > 1 else 2)


FAULTS = {
    TailUnwritten: ("size 4 -> 257: output 0[", "elements are wrong"),
    NoEmpty: ("size 4 -> 0: the op raises ZeroDivisionError: ", "a case it was not written for"),
    WrongForOneRow: ("size 4 -> 1: gradient of 'w'[", "a factor 2"),
}


def test_right_op_passes():
    assert "passed" == result_of(Scaled.apply).status


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_size_fails(fault):
    result = result_of(fault.apply)

    message, cause = FAULTS[fault]
    assert message in result.message
    assert cause in result.cause or "tail" in result.cause


def test_sizes_that_the_reference_refuses_are_left_out():
    def reference(x: Tensor) -> Tensor:
        return x.view(-1, 2).sum(-1)

    target = Target("faults::pairs", reference, reference, (TargetArgument("x"),), reference=reference)
    (result,) = check(target, lambda make: [Sample(make(6))], checks=["sizes"]).results

    assert ("passed", "") == (result.status, result.message)
