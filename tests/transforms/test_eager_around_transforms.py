"""Eager autograd around transforms, by value: forward_ad, backwards, hooks and checkpoints around each transform."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from custom_autograd import GradientUnavailable
from ops import TABLE

INSIDE = {
    "the loss": lambda loss, x: loss(x),
    "grad": lambda loss, x: grad(loss)(x),
    "vjp": lambda loss, x: vjp(loss, x)[1](x.new_ones(()))[0],
    "jvp": lambda loss, x: jvp(loss, (x,), (x.detach().cos(),))[1],
    "jacrev": lambda loss, x: jacrev(loss)(x),
    "jacfwd": lambda loss, x: jacfwd(loss)(x),
    "grad of grad": lambda loss, x: grad(lambda y: grad(loss)(y).sin().sum())(x),
    "jvp of grad": lambda loss, x: jvp(grad(loss), (x,), (x.detach().cos(),))[1],
    "grad of jvp": lambda loss, x: grad(lambda y: jvp(loss, (y,), (y.detach().cos(),))[1])(x),
    "vmap": lambda loss, x: vmap(loss)(batch(x)),
    "vmap of grad": lambda loss, x: vmap(grad(loss))(batch(x)),
    "grad of vmap": lambda loss, x: grad(lambda y: vmap(loss)(batch(y)).sum())(x),
}


def batch(x):
    return torch.stack([x, 1.1 * x, 0.9 * x])


def in_forward_ad(f, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x.sin())))


def in_forward_ad_and_recorded(f, x):
    x = x.clone().requires_grad_()
    with forward_ad.dual_level():
        found, tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, x.detach().sin())))
        return found, tangent, *gradients([found, tangent], x)


def recorded(f, x):
    """The result and its first two gradients."""
    x = x.clone().requires_grad_()
    found = f(x)
    (first,) = gradients([found.cos()], x, create_graph=True)
    return found, first, *gradients([None if first is None else first.sin()], x)


def gradients(results, x, **options):
    """The gradient of each result; None for one that nothing is recorded of."""
    return [
        torch.autograd.grad(one.sum(), x, retain_graph=True, allow_unused=True, **options)[0]
        if one is not None and one.requires_grad
        else None
        for one in results
    ]


def under_hooks(f, x):
    with saved_tensors_hooks(torch.clone, lambda saved: saved):
        return recorded(f, x)


def without_gradients(f, x):
    with torch.no_grad():
        return (f(x),)


AROUND = {
    "forward_ad": in_forward_ad,
    "forward_ad, recorded": in_forward_ad_and_recorded,
    "recorded": recorded,
    "hooks": under_hooks,
    "checkpoint": lambda f, x: recorded(lambda y: checkpoint(f, y, use_reentrant=False), x),
    "no_grad": without_gradients,
}


def outcome(function, row, around, inside):
    """The results of a nesting, or the error where torch or the op refuses it."""
    x, *others = (0.5 * tensor for tensor in row.inputs())
    loss = row.loss(function)
    try:
        return around(lambda y: inside(lambda z: 0.1 * loss(z, *others), y), x)
    except (RuntimeError, GradientUnavailable) as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_nestings(name):
    row, compared = TABLE[name], 0
    for (outer, around), (inner, inside) in itertools.product(AROUND.items(), INSIDE.items()):
        expected, found = (outcome(function, row, around, inside) for function in (row.reference, row.op))
        if isinstance(expected, RuntimeError):
            continue  # torch takes its own operations in no such nesting
        if isinstance(found, GradientUnavailable) and not row.has_second_order:
            continue
        assert not isinstance(found, Exception), (outer, inner, found)
        for one, other in zip(expected, found, strict=True):
            like: Tensor = next(tensor for tensor in (one, other, row.inputs()[0]) if tensor is not None)
            pair = [torch.zeros_like(like) if tensor is None else tensor.detach() for tensor in (one, other)]
            assert_close(*pair, rtol=1e-6, atol=1e-8, msg=lambda text: f"{inner} in {outer}: {text}")  # noqa: B023
        compared += 1

    assert compared > (20 if row.has_second_order else 5)
