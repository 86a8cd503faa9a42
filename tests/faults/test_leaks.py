"""The check `leaks` fails an op that keeps tensors after its calls, and passes one with a cache of fixed size."""

import gc
from typing import ClassVar

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("leaks", lambda make: [Sample(make(4, 3))])


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class Appends(Squared):
    everything: ClassVar = []

    @staticmethod
    def backward(ctx, grad):
        Appends.everything.append(grad.detach())
        return Squared.backward(ctx, grad)


class Caches(Squared):
    cache: ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        Caches.cache[x.shape] = x.detach()
        ctx.save_for_backward(x)
        return x * x


def is_positive_kept(x, kept=[]):  # noqa: B006 - the fault: a list that outlives the call
    kept.append(x > 0)
    return x > 0


@each("op", [Squared, Caches, torch.sin, torch.isnan])
def test_op_that_keeps_nothing_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


def test_list_that_grows_fails():
    result = result_of(Appends)

    assert "failed" == result.status
    assert (
        "a forward and its backward leaves 1 tensors behind (96 bytes), expected none, with the garbage collector off"
        == result.message
    )


def test_op_without_a_gradient_is_looked_at_too():
    assert result_of(is_positive_kept).message.startswith("a call leaves 1 tensors behind (12 bytes)")


def test_the_collector_is_as_it_was():
    result_of(Squared)

    assert gc.isenabled()
