"""The check `directional` fails a backward that is wrong along a direction, for large numbers, zeros or ties."""

import torch
from tables import each
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import check, custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls import directions
from custom_autograd.verification.checks import directional


def result_of(op, *shapes):
    return verdict("directional", lambda make: [Sample(*(make(*shape) for shape in shapes))])(op)


class Scaled(Function):
    """y = x² w, w broadcast over rows; the faults change one line."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 2 * grad * x * w, (grad * x * x).sum(0)


class Negative(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return -2 * grad * x * w, (grad * x * x).sum(0)


class Slightly(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 2 * grad * x * w * 1.0005, (grad * x * x).sum(0)


class Mean(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 2 * grad * x * w, (grad * x * x).mean(0)


class WrongWhenLarge(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return torch.where(x.abs() > 8, 0, 2 * grad * x * w), (grad * x * x).sum(0)


class Swapped(Scaled):
    """Two gradients of one shape, in the wrong order."""

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * x * x, 2 * grad * w * x


class WrongInBoth(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 3 * grad * x * w, 2 * (grad * x * x).sum(0)


class WrongByAllInBoth(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 4 * grad * x * w, 2 * (grad * x * x).sum(0)


FAULTS = {
    Negative: ("the gradient of 'x' along a direction is ", "the sign is flipped"),
    Slightly: (
        "the gradient of 'x' along a direction is ",
        "a factor 1.0005",
    ),
    Mean: ("the gradient of 'w' along a direction is ", "a factor 1/4: a mean where a sum belongs"),
    WrongWhenLarge: ("20 times as large: the gradient of 'x' along a direction is ", ""),
}


class Absolute(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].sign()


class NanAtZero(Absolute):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x / x.abs()


class Largest(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.amax(-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        is_largest = x == out[..., None]
        return grad[..., None] * is_largest / is_largest.sum(-1, keepdim=True)


class SoftThreshold(Function):
    """y is 0 near 0, within less than the step of a finite difference; beyond, the slope is 1."""

    width = 1e-5

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * (x.abs() - cls.width).clamp(min=0)

    @classmethod
    def backward(cls, ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() > cls.width)


class SoftThresholdLikeRounding(SoftThreshold):
    width = 3e-7


class SoftThresholdOfSlopeOne(SoftThreshold):
    @staticmethod
    def backward(ctx, grad):
        return grad.clone()


class SecondSmallest(Function):
    """Among three equal numbers it is the one in the middle, whose slope is straight along each direction alone."""

    @staticmethod
    def forward(ctx, x):
        value, index = x.kthvalue(2, dim=-1)
        ctx.save_for_backward(index)
        ctx.size = x.shape[-1]
        ctx.mark_non_differentiable(index)
        return value

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        found = grad.new_zeros(*grad.shape, ctx.size)
        return found.scatter_(-1, index[..., None], grad[..., None])


class SecondSmallestTwice(SecondSmallest):
    @staticmethod
    def backward(ctx, grad):
        return 2 * SecondSmallest.backward(ctx, grad)


@custom_op("faults_directional::summed")
def summed(x: Tensor, index: Tensor, size: int) -> Tensor:
    return x.new_zeros(size, x.shape[1]).index_add_(0, index, x)


summed.register_backward(lambda grad, index: {"x": grad[index], "index": None})


class AllLargest(Largest):
    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad[..., None] * (x == out[..., None])


def test_right_backward_passes():
    assert "passed" == result_of(Scaled, (4, 3), (3,)).status


@each("fault", FAULTS)
def test_wrong_backward_fails_with_its_cause(fault):
    result = result_of(fault, (4, 3), (3,))

    message, cause = FAULTS[fault]
    assert message in result.message
    assert cause in result.cause


def test_swapped_gradients_are_named():
    result = result_of(Swapped, (4, 3), (4, 3))

    assert "the gradient of 'x' and the gradient of 'w' are swapped" == result.cause


def test_factors_that_differ_are_listed():
    result = result_of(WrongInBoth, (4, 3), (3,))

    assert "(ratio 1.5)" in result.message
    assert "(ratio 2)" in result.message
    assert "a factor that differs: 1.5, 2" == result.cause
    assert "a factor 2" == result_of(WrongByAllInBoth, (4, 3), (3,)).cause


def test_kinks_pass():
    assert "passed" == result_of(Absolute, (5,)).status


@each("op", [SoftThreshold, SoftThresholdLikeRounding])
def test_kinks_on_both_sides_within_a_step_pass(op):
    assert "passed" == result_of(op, (5,)).status


def test_wrong_slope_between_two_kinks_fails():
    assert "failed" == result_of(SoftThresholdOfSlopeOne, (5,)).status


def test_nan_at_a_kink_fails():
    assert (
        "zero: the gradient of 'x' is nan, where every output and its slope are finite"
        in result_of(NanAtZero, (5,)).message
    )


def test_gradient_shared_among_ties_passes():
    assert "passed" == result_of(Largest, (3, 40)).status


def test_one_of_three_ties_passes():
    assert "passed" == result_of(SecondSmallest, (4, 3)).status


def test_a_wrong_gradient_beside_ties_fails():
    assert "failed" == result_of(SecondSmallestTwice, (4, 3)).status


def test_a_gradient_of_nothing_is_left_out():
    """A size of 0 is tried for `size`, and `index_add_` takes indices beyond it."""
    judged = verdict("directional", lambda make: [Sample(make(3, 2), make.tensor([0, 1, 0]), 2)])

    assert "passed" == judged(summed).status


def test_gradient_to_every_tie_fails():
    result = result_of(AllLargest, (3, 40))

    assert "zero: the gradient of 'x' along a direction is " in result.message
    assert "failed" == result.status


def test_infinite_slope_is_no_failure():
    assert "passed" == result_of(torch.sqrt, (0,)).status


def test_a_failure_whose_cause_cannot_be_looked_for_stays_a_failure(monkeypatch):
    """On an accelerator a tensor of the host once got in there, and an op that fails was said to pass."""

    def raising(*arguments):
        raise RuntimeError("Expected all tensors to be on the same device")

    monkeypatch.setattr(directions, "_cause", raising)
    result = verdict("directional", lambda make: [Sample(make(3, 4), make(4))])(Negative, isolated=False)

    assert "failed" == result.status
    assert "the gradient of" in result.message


class FirstColumns(Function):
    """The product of the first two columns; the backward takes no more than those."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[:, 0] * x[:, 1]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x * 0 + torch.stack([grad * x[:, 1], grad * x[:, 0]], -1)


def test_a_backward_that_raises_for_a_size_that_the_forward_takes_is_named_with_the_size():
    result = result_of(FirstColumns, (5, 2))

    assert "failed" == result.status
    assert result.message.startswith("size 2 -> 256: the backward raises RuntimeError: The size of tensor a (256)")
    assert "a kernel that meets a case it was not written for" == result.cause


def test_numbers_outside_of_the_range_of_a_sample_are_not_tried():
    seen = []

    def steps(t):
        seen.append(float(t.detach().abs().max()))
        return t * t

    check(steps, lambda make: [Sample(make(4, low=0.5, high=1.0))], checks=["directional"], isolated=False)
    assert seen
    assert max(seen) < 1.1


def test_a_call_that_takes_long_far_out_is_left_out(monkeypatch):
    monkeypatch.setattr(directional, "SLOWEST", -1.0)
    result = result_of(Scaled, (3, 4), (4,))

    assert "passed" == result.status
    assert "20 times as large: left out, because a call takes 0 s" in result.message


def test_other_numbers_are_left_out_once_they_have_taken_long(monkeypatch):
    monkeypatch.setattr(directional, "LONGEST", -1.0)
    result = result_of(Scaled, (3, 4), (4,))

    assert "passed" == result.status
    assert "20 times as large: left out, with what follows, because others took -1 s" in result.message
    assert "failed" == result_of(Negative, (3, 4), (4,)).status, "the sample itself is looked at"
