"""A function whose call runs nothing yet, such as an async one, is refused where it is declared or registered."""

import functools

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import DeclarationError, RegistrationError, Sample, custom_op


async def awaited(x: Tensor) -> Tensor:
    return x * 2


def yielding(x: Tensor) -> Tensor:
    yield x * 2


async def yielding_later(x: Tensor) -> Tensor:
    yield x * 2


class Awaited:
    async def __call__(self, x: Tensor) -> Tensor:
        return x * 2

    async def method(self, x: Tensor) -> Tensor:
        return x * 2


def waiting(function):
    @functools.wraps(function)
    def wait(x):
        try:
            function(x).send(None)
        except StopIteration as end:
            return end.value

    return wait


KINDS = {
    "a coroutine": awaited,
    "a generator": yielding,
    "an asynchronous generator": yielding_later,
}


@each("returned", KINDS)
def test_it_cannot_be_declared(returned):
    with pytest.raises(DeclarationError, match=f"the declared function returns {returned}, which has not run"):
        custom_op("delayed::declared", KINDS[returned])


@each("function", [functools.partial(awaited), Awaited(), Awaited().method])
def test_other_callables_cannot_be_either(function):
    with pytest.raises(DeclarationError, match="the declared function returns a coroutine, which has not run"):
        custom_op("delayed::declared", function)


async def jvp(tangent_x):
    return tangent_x * 2


def backward(grad):
    yield grad * 2


async def backward_of_context(ctx, grad):
    return grad * 2


async def rule_of_vmap(info, in_dims, x):
    return x * 2, 0


async def samples(make):
    yield Sample(make(3))


@each(
    ("register", "function"),
    [
        ("backward", backward),
        ("jvp", jvp),
        ("autograd", backward_of_context),
        ("vmap", rule_of_vmap),
        ("reference", awaited),
        ("fake", yielding),
        ("samples", samples),
    ],
)
def test_it_is_not_a_rule(register, function):
    op = custom_op("delayed::ruled", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)

    with pytest.raises(
        RegistrationError, match=r"returns .*, which has not run\n(.*\n)*  rule .*test_delayed_functions"
    ):
        getattr(op, f"register_{register}")(function)


@each("returned", KINDS)
def test_it_is_not_a_kernel(returned):
    op = custom_op("delayed::with_kernels", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)

    with pytest.raises(RegistrationError, match=f"the cpu kernel returns {returned}, which has not run"):
        op.register_kernel("cpu")(KINDS[returned])


def test_a_function_that_awaits_it_can_be_declared():
    op = custom_op("delayed::awaited", waiting(awaited))

    assert [2.0, 2.0] == op(torch.ones(2)).tolist()


def test_samples_may_be_yielded():
    op = custom_op("delayed::sampled", lambda x: x * 2, schema="(Tensor x) -> Tensor", reference=True)

    @op.register_samples
    def _(make):
        yield Sample(make(3))

    op.check(checks=["contract"])
