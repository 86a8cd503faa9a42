"""The check `low_precision` fails sums that half precision cannot hold, and measures the errors of the rest."""

import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

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


def test_sums_in_float32_pass_with_their_errors_measured():
    result = result_of(Scaled)

    assert "passed" == result.status, result.message
    assert 0 < result.measures["error, bfloat16, size 4 -> 4099"] < 0.01


def test_sum_in_bfloat16_fails_where_it_is_long():
    result = result_of(AccumulatesInLowPrecision)

    assert "bfloat16, size 4 -> 4099: gradient of 'w' has a relative error of " in result.message
    assert "a sum is accumulated in low precision; accumulate in float32" == result.cause
    assert "float32" not in result.message.split(":")[0]


def test_refused_dtype_stays_visible():
    assert "not checked: float16: the op refuses it (TypeError: 'x' is float16)" in result_of(RefusesHalf).message
