"""Kernels run below autograd in native calls too, but for those that compute gradients themselves."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from custom_autograd import custom_op
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


def is_below():
    """Return True if operations of this thread run below autograd now."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)


def declare(name, kernel, rule=lambda grad, x: grad * 2):
    op = custom_op(f"below_autograd::{name}", kernel, schema="(Tensor x) -> Tensor", replace=True)
    op.register_backward(rule)
    return op


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "recorded"])
def test_a_kernel_runs_below_autograd_from_its_second_call_on(requires_grad):
    seen = []

    def kernel(x):
        seen.append(is_below())
        return x * 2

    op = declare("seen", kernel)
    x = torch.ones(3, requires_grad=requires_grad)
    results = [op(x) for _ in range(4)]

    assert [True] * 2 == seen[-2:]
    assert not is_below()
    assert [requires_grad] * 4 == [result.requires_grad for result in results]


def test_keys_are_restored_after_a_kernel_that_raises():
    def kernel(x):
        if x[0] < 0:
            raise ZeroDivisionError("negative")
        return x * 2

    op = declare("raising", kernel)
    for _ in range(3):
        op(torch.ones(3))
    with pytest.raises(ZeroDivisionError):
        op(-torch.ones(3))

    assert not is_below()


def test_a_rule_runs_above_autograd():
    def rule(grad, x):
        with torch.enable_grad():
            alias = x.detach().requires_grad_()
            return grad * torch.autograd.grad((alias**2).sum(), alias)[0]

    op = declare("rule", lambda x: x**2, rule)
    x = torch.ones(3, requires_grad=True)
    for _ in range(4):
        x.grad = None
        op(x).sum().backward()

    assert [2.0] * 3 == x.grad.tolist()


def by_engine(x):
    with torch.enable_grad():
        alias = x.detach().requires_grad_()
        return torch.autograd.grad((alias**2).sum(), alias)[0]


def by_imported(x):
    return jacobian(lambda t: t**2, x).sum(0)


helpers = ModuleType("helpers")
helpers.by_imported = by_imported


def by_jacobian(x):
    return torch.autograd.functional.jacobian(lambda t: t**2, x).sum(0)


def by_transform(x):
    return torch.func.grad(lambda t: (t**2).sum())(x)


@pytest.mark.parametrize("kernel", [by_engine, by_jacobian, by_transform])
def test_a_kernel_that_computes_gradients_gives_the_same_in_every_call(kernel):
    op = declare(kernel.__name__, kernel)
    x = torch.arange(3.0)

    assert [[0.0, 2.0, 4.0]] * 5 == [op(x).tolist() for _ in range(5)]
    assert [[0.0, 2.0, 4.0]] * 3 == [op(x.requires_grad_()).tolist() for _ in range(3)]


def by_decorated(x):
    @torch.enable_grad()
    def solve(x):
        alias = x.detach().requires_grad_()
        (alias**2).sum().backward()
        return alias.grad

    return solve(x)


def by_helper(x):
    return helpers.by_imported(x)


@pytest.mark.parametrize("solve", [by_engine, by_jacobian, by_transform, by_decorated, by_helper])
def test_a_kernel_that_computes_gradients_in_later_calls_only_gives_them(solve):
    def kernel(x: Tensor, is_solving: bool) -> Tensor:
        return solve(x) if is_solving else x * 2

    op = custom_op(f"below_autograd::later_{solve.__name__}", kernel, schema="(Tensor x, bool is_solving) -> Tensor")
    x = torch.arange(3.0)
    for _ in range(3):
        op(x, False)

    assert [0.0, 2.0, 4.0] == op(x, True).tolist()


def test_an_op_inside_a_kernel_records_nothing_and_counts_writes():
    inner = custom_op("below_autograd::inner", lambda x: x * 3, schema="(Tensor x) -> Tensor")
    inner.register_backward(lambda grad: grad * 3)
    outer = declare("outer", lambda x: inner(x) + inner(x), lambda grad, x: grad * 6)
    x = torch.ones(3, requires_grad=True)
    results = [outer(x) for _ in range(5)]
    torch.stack(results).sum().backward()

    assert [30.0] * 3 == x.grad.tolist()
    assert [6.0] * 3 == results[-1].tolist()


def test_a_kernel_s_write_to_state_has_a_version():
    state = torch.zeros(3)

    def kernel(x):
        state.add_(x.detach())
        return x * 2

    op = declare("state", kernel)
    before = state._version
    for _ in range(4):
        op(torch.ones(3))

    assert before + 4 == state._version


def test_a_view_of_an_input_is_still_found():
    @custom_op("below_autograd::view")
    def op(x: Tensor, is_view: bool) -> Tensor:
        return x[1:] if is_view else x[1:] * 1

    for _ in range(3):
        op(torch.ones(3), False)
    with pytest.raises(Exception, match=r"view|alias|share"):
        op(torch.ones(3), True)


class SeenFunctions(torch.overrides.TorchFunctionMode):
    """Notes whether functions are called below autograd."""

    def __init__(self):
        self.below = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.below.append(is_below())
        return func(*args, **(kwargs or {}))


def test_an_arithmetic_rule_that_a_mode_sees_runs_above_autograd():
    op = declare("mode", lambda x: x * x, lambda grad, x: 2 * (grad * x))
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    total = op(x).sum()
    with SeenFunctions() as seen:
        total.backward()

    assert [8.0] * 3 == x.grad.tolist()
    assert seen.below
    assert not any(seen.below)


def test_an_arithmetic_rule_is_recorded_where_grad_mode_is_on():
    op = declare("twice", lambda x: x * x, lambda grad, x: 2 * (grad * x))
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(3):
        (first,) = torch.autograd.grad(op(x).sum(), x)
        (recorded,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(recorded.sum(), x)

    assert not first.requires_grad
    assert [2.0] * 3 == second.tolist()


def test_an_arithmetic_rule_keeps_tangents_of_incoming_gradients():
    op = declare("tangents", lambda x: x * x, lambda grad, x: 2 * (grad * x))
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    with torch.autograd.forward_ad.dual_level():
        grad = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.full((3,), 5.0))
        (found,) = torch.autograd.grad(op(x), x, grad)
        tangent = torch.autograd.forward_ad.unpack_dual(found).tangent

    assert [0.0, 10.0, 20.0] == tangent.tolist()


class Doubling(Tensor):
    """Computes a gradient of its own where it is multiplied."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if "mul" not in func.__name__:
            return super().__torch_function__(func, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
            alias = torch.ones(3, requires_grad=True)
            (two,) = torch.autograd.grad((2 * alias).sum(), alias)
            return func(*args, **(kwargs or {})).detach() * two


def test_an_arithmetic_rule_of_a_subclass_runs_above_autograd():
    op = declare("subclass", lambda x: x * x, lambda grad, x: grad * x)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    x.grad = None
    op(x).backward(torch.ones(3).as_subclass(Doubling))

    assert [2.0] * 3 == x.grad.tolist()
