"""The check `low_precision` fails sums that half precision cannot hold, and measures the errors of the rest."""

import torch
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.checks import low_precision

result_of = verdict("low_precision", lambda make: [Sample(make(4, 8), make(8))])


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class AccumulatesInLowPrecision(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).cumsum(0, dtype=x.dtype)[-1] if x.dtype.itemsize > 2 else one_by_one(grad * x)


def one_by_one(rows):
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


class RefusesHalf(Scaled):
    @staticmethod
    def forward(ctx, x, w):
        if x.dtype == torch.float16:
            raise TypeError("'x' is float16")
        return Scaled.forward(ctx, x, w)


def test_long_sums_that_take_long_are_computed_in_one_dtype(monkeypatch):
    compute = low_precision._check

    def computed(target, sample, dtype, budget, label):
        yield from compute(target, sample, dtype, budget, label)
        monkeypatch.setattr(low_precision, "LONGEST", -1 if label else 60)

    monkeypatch.setattr(low_precision, "_check", computed)
    result = verdict("low_precision", lambda make: [Sample(make(4), make())])(AccumulatesInLowPrecision)

    assert "failed" == result.status
    assert "bfloat16, size 4 -> 4100: gradient of 'w' has a relative error" in result.message
    assert "error, float32, size 4 -> 4100" not in result.measures


def test_sums_in_float32_pass_with_their_errors_measured():
    result = result_of(Scaled)

    assert "passed" == result.status, result.message
    assert 0 < result.measures["error, bfloat16, size 4 -> 4100"] < 0.01


def test_sum_in_bfloat16_fails_where_it_is_long():
    result = result_of(AccumulatesInLowPrecision)

    assert "bfloat16, size 4 -> 4100: gradient of 'w' has a relative error of " in result.message
    assert "a sum is accumulated in low precision; accumulate in float32" == result.cause
    assert "float32" not in result.message.split(":")[0]


def test_refused_dtype_stays_visible():
    assert "not checked: float16: the op refuses it (TypeError: 'x' is float16)" in result_of(RefusesHalf).message


@custom_op("low_precision::rotated", reference=True)
def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Take an odd last dimension, too, as its halves broadcast; the gradient then has the wrong shape in any dtype."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


@rotated.register_backward
def _(grad, x, angle):
    first, second = rotated(grad, -angle).chunk(2, -1)
    turned = grad * torch.cat([-rotated(x, angle).chunk(2, -1)[1], rotated(x, angle).chunk(2, -1)[0]], -1)
    return {"x": torch.cat([first, second], -1), "angle": sum(turned.chunk(2, -1)).sum_to_size(angle.shape)}


def test_a_size_that_is_wrong_in_every_dtype_is_no_matter_of_precision():
    report = rotated.check([Sample(torch.randn(2, 3, 4), torch.randn(3, 2))], checks=["low_precision"])

    assert {"passed", "skipped"} >= {result.status for result in report.results}
