"""Which kernels are taken to compute gradients themselves."""

from __future__ import annotations

import functools
from types import ModuleType
from unittest import mock

import pytest
import torch
from torch import enable_grad
from torch.autograd.functional import jacobian

from custom_autograd.calls.autograd_use import may_use_autograd


def doubled(x):
    return torch.mul(x, 2)


def by_attribute(x):
    with torch.enable_grad():
        return x * 2


def by_name(x):
    with enable_grad():
        return x * 2


def by_switch(x):
    torch.set_grad_enabled(mode=True)
    return x * 2


def by_functional(x):
    return jacobian(doubled, x)


def by_inner_function(x):
    def solve():
        return torch.autograd.grad(x.sum(), x)

    return solve()


@torch.enable_grad()
def by_decorator(x):
    return x * 2


def by_helper(x):
    return by_attribute(x) + by_helper(x)


helpers = ModuleType("helpers")
helpers.solve = by_attribute


def by_module(x):
    return helpers.solve(x)


def make_closure():
    solve = by_attribute
    return lambda x: solve(x)


class Solver:
    """A kernel as a method or an object."""

    def solve(self, x):
        return by_attribute(x)

    def __call__(self, x):
        return self.solve(x)

    @staticmethod
    def solve_statically(x):
        return by_attribute(x)


def by_static_method(x):
    return Solver.solve_statically(x)


@pytest.mark.parametrize(
    "kernel",
    [
        by_attribute,
        by_name,
        by_switch,
        by_functional,
        by_inner_function,
        by_decorator,
        by_helper,
        by_module,
        make_closure(),
        by_static_method,
        Solver().solve,
        Solver(),
        functools.partial(by_attribute),
    ],
)
def test_a_kernel_that_names_what_computes_gradients_may_use_autograd(kernel):
    assert may_use_autograd(kernel)


def by_transform(x):
    return torch.func.grad(lambda t: t.sum())(x)


@torch.no_grad()
def without_gradients(x):
    return doubled(x) + without_gradients(x)


class Lazy:
    """Loads something when it is asked for anything."""

    def __getattribute__(self, name):
        raise RuntimeError(f"asked for {name}")


lazy, call = Lazy(), mock.call


def by_strange_values(x):
    return lazy.load(call(x))


@pytest.mark.parametrize(
    "kernel", [doubled, by_transform, without_gradients, by_strange_values, torch.mul, functools.partial(torch.mul, 2)]
)
def test_other_kernels_may_not_and_nothing_is_asked(kernel):
    assert not may_use_autograd(kernel)
