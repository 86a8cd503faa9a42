"""Kernels whose `functools.wraps` or `__signature__` hides arguments: what the code takes decides, as in torch."""

import functools
import inspect

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import DeclarationError, RegistrationError, custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")

SCHEMA = "(Tensor x, float k, Tensor state) -> Tensor"


def scale(x: Tensor, k: float) -> Tensor:
    return x * k


@functools.wraps(scale)
def wrapped(*args):
    x, k, state = args
    state.sum()
    return scale(x, k)


def signed(x, k, state):
    return scale(x, k)


signed.__signature__ = inspect.signature(scale)


@functools.wraps(scale)
def named(x, k, state=None):
    return scale(x, k)


KERNELS = [wrapped, signed, named]


def grad_of_scale(ctx, grad):
    return grad * ctx.k, None, None


def keep_k(ctx, inputs, output):
    ctx.k = inputs[1]


@each("kernel", KERNELS)
@each("custom_op", [custom_op, torch.library.custom_op], ids=["ours", "torch"])
def test_a_kernel_takes_what_its_code_takes(custom_op, kernel):
    name = f"wrapped_{custom_op.__module__.partition('.')[0]}::{kernel.__name__}"
    op = custom_op(name, mutates_args=(), schema=SCHEMA)(kernel)
    op.register_fake(lambda x, k, state: torch.empty_like(x))
    op.register_autograd(grad_of_scale, setup_context=keep_k)
    x, state = torch.tensor([1.0, 2.0], requires_grad=True), torch.zeros(())
    found = torch.compile(op, backend="aot_eager", fullgraph=True)(x, 3.0, state)

    assert [3.0, 6.0] == op(x, 3.0, state).tolist() == found.tolist()
    assert [3.0, 3.0] == torch.autograd.grad(found.sum(), x)[0].tolist()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_later_kernel_too(kernel):
    op = custom_op(f"wrapped_later::{kernel.__name__}", lambda x, k, state: x - k, schema=SCHEMA)
    op.register_kernel("cpu", kernel)
    op.register_fake(kernel)

    assert [4.0, 6.0] == op(torch.tensor([2.0, 3.0]), 2.0, torch.zeros(())).tolist()


def test_code_that_takes_less_is_refused_whatever_it_says():
    def short(x):
        return x

    short.__signature__ = inspect.signature(signed, follow_wrapped=False)
    with pytest.raises(DeclarationError, match="it takes 1 of 2 positional arguments"):
        custom_op("wrapped_short::declared", short, schema="(Tensor x, float k) -> Tensor")
    op = custom_op("wrapped_short::kernel", scale)
    with pytest.raises(RegistrationError, match="it takes 1 of 2 positional arguments"):
        op.register_kernel("cpu", short)
