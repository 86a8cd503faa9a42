"""Every combination of a schema, its rules, a jvp and a constant has the derivatives of plain PyTorch in every way."""

from __future__ import annotations

import itertools

import pytest
import torch
from dispatch.declarations import FORMS, RULES, K, declared
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from custom_autograd import through_dispatcher


def numbers():
    return torch.linspace(0.5, 2.0, 3, dtype=torch.float64), torch.linspace(1.0, 3.0, 3, dtype=torch.float64)


def eager(f, x, y, chosen=(0, 1)):
    """Return the gradients of some inputs, and theirs, in calls that are native from the second on."""
    for _ in range(3):
        leaves = [one.clone().requires_grad_() for one in (x, y)]
        asked = [leaves[place] for place in chosen]
        first = torch.autograd.grad(f(*leaves).pow(2).sum(), asked, materialize_grads=True)
        second = torch.autograd.grad(f(*leaves).pow(2).sum(), asked, create_graph=True, materialize_grads=True)
        of_second = torch.autograd.grad(sum(one.pow(2).sum() for one in second), asked, materialize_grads=True)
    return first, of_second


def half(f, x, y, chosen):
    """Return the gradient of the one input that requires one."""
    leaf = (x, y)[chosen].clone().requires_grad_()
    given = (leaf, y) if chosen == 0 else (x, leaf)
    result = f(*given)
    return torch.autograd.grad(result.sum(), leaf, materialize_grads=True) if result.requires_grad else [x * 0]


def beside_a_view(f, x, y):
    """Return the gradient of x, where y is a view that was made under no_grad."""
    leaf, other = x.clone().requires_grad_(), y.clone().requires_grad_()
    with torch.no_grad():
        view = other.view(3)
    return torch.autograd.grad(f(leaf, view).sum(), leaf)


def in_a_level(f, x, y):
    with forward_ad.dual_level():
        dual, other = forward_ad.make_dual(x, y), forward_ad.make_dual(y, x)
        return [forward_ad.unpack_dual(f(dual, one)).tangent for one in (y, other)]


def batched_gradients(f, x, y):
    leaves = [one.clone().requires_grad_() for one in (x, y)]
    result = f(*leaves)
    return torch.autograd.grad(result, leaves, torch.stack([x, y]), is_grads_batched=True, materialize_grads=True)


def checkpointed(f, x, y):
    return eager(lambda x, y: checkpoint(f, x, y, use_reentrant=False), x, y)


def dispatched(f, x, y):
    with through_dispatcher():
        return eager(f, x, y)


def total(f):
    return lambda x, y: f(x, y).pow(2).sum()


def rows(x, y):
    return torch.stack([x, y]), torch.stack([y, x])


WAYS = {
    "eager": eager,
    "only x": lambda f, x, y: eager(f, x, y, (0,)),
    "x alone": lambda f, x, y: half(f, x, y, 0),
    "y alone": lambda f, x, y: half(f, x, y, 1),
    "a view under no_grad": beside_a_view,
    "dispatcher": dispatched,
    "checkpoint": checkpointed,
    "batched gradients": batched_gradients,
    "level": in_a_level,
    "jvp": lambda f, x, y: torch.func.jvp(f, (x, y), (y, x)),
    "jvp of x": lambda f, x, y: torch.func.jvp(lambda x: f(x, y), (x,), (y,)),
    "grad": lambda f, x, y: torch.func.grad(total(f), (0, 1))(x, y),
    "jacfwd": lambda f, x, y: torch.func.jacfwd(f, (0, 1))(x, y),
    "hessian": lambda f, x, y: torch.func.hessian(total(f), (0, 1))(x, y),
    "grad of jvp": lambda f, x, y: torch.func.grad(lambda x: torch.func.jvp(f, (x, y), (y, x))[1].sum())(x),
    "vmap": lambda f, x, y: torch.vmap(f)(*rows(x, y)),
    "vmap of grad": lambda f, x, y: torch.vmap(torch.func.grad(total(f), (0, 1)), (0, None))(rows(x, y)[0], y),
    "grad of vmap": lambda f, x, y: torch.func.grad(total(torch.vmap(f)), (0, 1))(*rows(x, y)),
    "jvp of vmap": lambda f, x, y: torch.func.jvp(torch.vmap(f, (None, 0)), (x, rows(x, y)[1]), (y, rows(x, y)[0])),
}

COMBINATIONS = [
    (form, rules, has_jvp, is_constant)
    for form, rules, has_jvp, is_constant in itertools.product(FORMS, RULES, (False, True), (False, True))
    if not (is_constant and form == "list")
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_are_those_of_plain_pytorch(form, way):
    wrong = {
        combination[1:]: problem
        for combination in COMBINATIONS
        if combination[0] == form and (problem := find_problem(combination, WAYS[way]))
    }

    assert wrong == {}


def find_problem(combination, way):
    """Return what is wrong with one combination, so that all are shown together; an empty text if nothing is."""
    is_constant = combination[-1]
    expected = way(lambda x, y: torch.sin(x) * (y.detach() if is_constant else y) * K, *numbers())
    try:
        torch.testing.assert_close(way(declared(*combination), *numbers()), expected)
    except Exception as error:  # noqa: BLE001 - of any rule
        return f"{type(error).__name__}: {error}"
    return ""
