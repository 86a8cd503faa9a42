"""A drop-in rule next to a jvp of the author's: each is given what it asks for, in native and in generated calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd import custom_op, through_dispatcher

pytestmark = pytest.mark.usefixtures("both_calls")


@custom_op("context_and_jvp::scaled")
def scaled(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.sin(x) * y * k


def save(ctx, inputs, output):
    x, y, ctx.k = inputs
    ctx.save_for_backward(x, y)


def backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * torch.cos(x) * y * ctx.k, grad * torch.sin(x) * ctx.k, None


@scaled.register_jvp
def _(x, y, k, tangent_x, tangent_y):
    from_x = 0 if tangent_x is None else tangent_x * torch.cos(x) * y
    return k * (from_x if tangent_y is None else from_x + torch.sin(x) * tangent_y)


scaled.register_fake(lambda x, y, k=2.0: torch.empty_like(x))
scaled.register_autograd(backward, setup_context=save)


def plain(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.sin(x) * y * k


def inputs() -> tuple[Tensor, Tensor]:
    return tuple(torch.linspace(start, 2.0, 3, dtype=torch.float64, requires_grad=True) for start in (0.5, 1.0))


def test_the_backward_is_given_what_it_saved_and_nothing_else():
    x, y = inputs()
    for k in (2.0, 3.0) * 3:
        found = torch.autograd.grad(scaled(x, y, k).sum(), (x, y))

        torch.testing.assert_close(found, torch.autograd.grad(plain(x, y, k).sum(), (x, y)))


def test_the_graph_shows_what_was_saved_once():
    x, y = inputs()
    for _ in range(3):
        result = scaled(x, y)

    assert [one.shape for one in result.grad_fn.saved_tensors] == [x.shape, y.shape]


@pytest.mark.parametrize("is_recorded", [False, True], ids=["alone", "recorded"])
def test_the_jvp_is_given_numbers_in_a_level(is_recorded):
    x, y = (one if is_recorded else one.detach() for one in inputs())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found = forward_ad.unpack_dual(scaled(dual, y, 3.0)).tangent
        expected = forward_ad.unpack_dual(plain(dual, y, 3.0)).tangent

    torch.testing.assert_close(found, expected)


def test_the_jvp_is_given_numbers_in_transforms():
    x, y = (one.detach() for one in inputs())
    for transform in (torch.func.jacfwd, torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacfwd(f))):
        found = transform(lambda x: scaled(x, y, 3.0).sum())(x)

        torch.testing.assert_close(found, transform(lambda x: plain(x, y, 3.0).sum())(x))
    with through_dispatcher():
        tangent = torch.func.jvp(lambda x: scaled(x, y, k=3.0), (x,), (y,))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(lambda x: plain(x, y, 3.0), (x,), (y,))[1])
