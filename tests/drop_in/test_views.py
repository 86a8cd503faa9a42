"""Ops that return views, with the rules of `torch.library`: as autograd knows views, also of wrapper subclasses."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from custom_autograd import KernelError, custom_op

SCHEMA = "(Tensor(a) x, int i) -> Tensor(a)"


def declare(custom_op, name):
    op = custom_op(f"dropinviews::{name}", lambda x, i: x.select(0, i), mutates_args=(), schema=SCHEMA)
    op.register_fake(lambda x, i: x.select(0, i))

    def setup_context(ctx, inputs, output):
        ctx._is_pure_view = True
        ctx.shape, ctx.i = inputs[0].shape, inputs[1]

    def backward(ctx, grad):
        found = grad.new_zeros(ctx.shape)
        found[ctx.i] = grad
        return found, None

    op.register_autograd(backward, setup_context=setup_context)
    return op


OURS, TORCHS = declare(custom_op, "ours"), declare(torch.library.custom_op, "torchs")
BOTH = pytest.mark.parametrize("op", [OURS, TORCHS], ids=["ours", "torch.library"])


class Wrapper(Tensor):
    """Holds another tensor, and answers to every op below autograd."""

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=requires_grad
        )

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner_args, inner_kwargs = tree_map_only(cls, lambda one: one.inner, (args, kwargs or {}))
        out = tree_map_only(Tensor, cls, function(*inner_args, **inner_kwargs))
        return return_and_correct_aliasing(function, args, kwargs or {}, out)


@BOTH
@pytest.mark.parametrize("with_grad", [False, True])
def test_a_view_of_a_wrapper_subclass_is_one(op, with_grad):
    x = Wrapper(torch.ones(2, 3), with_grad)
    view = op(x, 0)

    assert type(view) is Wrapper
    assert view._is_view()
    assert view._base is x


@BOTH
def test_a_view_may_be_written_to(op):
    leaf = torch.ones(2, 3, requires_grad=True)
    x = leaf * 2
    view = op(x, 0)
    view.mul_(3)
    x.sum().backward()

    assert [[6.0] * 3, [2.0] * 3] == leaf.grad.tolist()


@BOTH
def test_the_version_of_a_view_is_that_of_its_base(op):
    x = torch.ones(2, 3)
    view = op(x, 1)
    view.add_(1)

    assert (1, 1) == (x._version, view._version)
    assert [[1.0] * 3, [2.0] * 3] == x.tolist()


@BOTH
def test_a_view_in_inference_mode(op):
    with torch.inference_mode():
        assert [1.0, 1.0] == op(torch.ones(3, 2), 2).tolist()


def test_memory_that_numpy_shares_is_no_view_of_a_wrapped_tensor_either():
    @custom_op("dropinviews::by_numpy", schema="(Tensor(a) x) -> Tensor(a)")
    def by_numpy(x):
        return torch.from_numpy(np.asarray(x))

    for x in (torch.ones(3), Wrapper(torch.ones(3))):
        with pytest.raises(KernelError, match="returns no view of 'x'"):
            by_numpy(x)
