"""Tangents are not saved: the hooks of a caller, those of a checkpoint too, see nothing of how one is derived."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from custom_autograd import custom_op

pytestmark = pytest.mark.usefixtures("both_calls")


def sine(x: Tensor) -> Tensor:
    return x.sin()


def by_name():
    op = custom_op("tangents::by_name", sine, replace=True)
    op.register_backward(lambda grad, x: grad * x.cos())
    return op


def by_reference():
    return custom_op("tangents::by_reference", sine, reference=True, replace=True)


def drop_in():
    op = custom_op("tangents::drop_in", sine, replace=True)
    op.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


def points():
    return torch.linspace(1, 5, 4, dtype=torch.float64)


def lossy():
    return saved_tensors_hooks(lambda tensor: tensor.round(), lambda kept: kept)


def by_func(op, x):
    return torch.func.jvp(op, (x,), (torch.ones_like(x),))[1]


def by_dual_level(op, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(op(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


OPS = pytest.mark.parametrize("make", [by_name, by_reference, drop_in])


@OPS
def test_a_derived_tangent_is_as_exact_under_lossy_hooks(make):
    op, x = make(), points()

    with lossy():
        torch.testing.assert_close(by_func(op, x), x.cos())


@OPS
@pytest.mark.parametrize("tangent_of", [by_func, by_dual_level])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_derived_tangent_can_be_taken_within_a_checkpoint(make, tangent_of, requires_grad):
    op, x = make(), points().requires_grad_(requires_grad)
    tangent = checkpoint(lambda x: tangent_of(op, x), x, use_reentrant=False)

    torch.testing.assert_close(tangent, x.cos())
    if requires_grad:
        torch.testing.assert_close(torch.autograd.grad(tangent.sum(), x)[0], -x.sin())


def test_a_reference_recomputes_as_exactly_in_a_backward_under_lossy_hooks():
    op, x = by_reference(), points().requires_grad_()
    y = op(x)

    with lossy():
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.cos())
