"""Native calls run arithmetic below autograd, with the same results in every mode, and run nothing else there."""

from __future__ import annotations

import itertools
import operator
import sys

import pytest
import torch
import torch.autograd.forward_ad as forward
from dispatch.grid_modes import DispatchLog, FunctionLog
from tables import each
from torch import Tensor
from torch.autograd.functional import jacobian

from custom_autograd import custom_op
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)
NUMBERS = itertools.count()


def declare(kernel, rule=lambda grad, x: grad * 2, schema="(Tensor x) -> Tensor"):
    op = custom_op(f"below_autograd::op_{next(NUMBERS)}", kernel, schema=schema)
    op.register_backward(rule)
    return op


# --------------------------------------------------------------------------------------------- what runs below autograd


def is_below():
    """Return True if operations of this thread run below autograd now."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)


def is_below_in(function, work):
    """Run `work`, and return for each call of a function whether it runs below autograd."""
    found = []

    def trace(frame, event, argument):
        if frame.f_code is function.__code__:
            found.append(is_below())

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


def product(x):
    return x * x


def other(x):
    return torch.sin(x * x)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("kernel", [product, other])
def test_an_arithmetic_kernel_runs_below_autograd(kernel, requires_grad):
    op = declare(kernel)
    x = torch.ones(3, requires_grad=requires_grad)
    for _ in range(5):
        op(x)

    assert [kernel is product] * 2 == is_below_in(kernel, lambda: (op(x), op(x)))


@pytest.mark.parametrize("rule", [lambda grad, x: grad * x, lambda grad, x: torch.sin(grad * x)])
def test_an_arithmetic_rule_runs_below_autograd_where_nothing_is_recorded(rule):
    op = declare(product, rule)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    is_arithmetic = "torch" not in rule.__code__.co_names

    assert [is_arithmetic] == is_below_in(rule, lambda: op(x).sum().backward())
    assert [False] == is_below_in(rule, lambda: torch.autograd.grad(op(x).sum(), x, create_graph=True))


def test_keys_are_restored_after_arithmetic_that_raises():
    op = declare(lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor")
    for _ in range(3):
        op(torch.ones(3), torch.ones(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        op(torch.ones(3), torch.ones(4))

    assert not is_below()


@pytest.mark.filterwarnings("ignore:Warning only once:UserWarning")
@pytest.mark.parametrize("key", ["AutogradCPU", "Autograd"])
def test_a_kernel_of_others_for_autograd_is_not_left_out(key):
    def multiply(x, y):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.aten.mul.Tensor(x, y) + 100

    op = declare(product, lambda grad, x: grad * x)
    x = torch.ones(3, requires_grad=True)

    def found():
        x.grad = None
        op(x).sum().backward()
        return op(x).tolist(), x.grad.tolist()

    before = [found() for _ in range(4)]
    with torch.library._scoped_library("aten", "IMPL") as aten:
        aten.impl("mul.Tensor", multiply, key, allow_override=True)
        within = [found() for _ in range(4)]
    after = [found() for _ in range(4)]

    assert [([1.0] * 3, [1.0] * 3)] * 4 == before == after
    assert [([101.0] * 3, [101.0] * 3)] * 4 == within


# ---------------------------------------------------------------------------------------------------- the same results


def plain(x, y):
    yield x, y
    yield x, y.flip(0)
    yield x[:, ::2], y[:, 1::2]
    yield x.t(), y
    yield x[:1], y
    yield x[0], y
    yield x, y[0, 0]
    yield x[:0], y[:0]
    yield x, 3
    yield 2, y


@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.mul, lambda x, y: -(y * x)])
def test_operators_give_the_same_below_autograd(function):
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int32, torch.uint8]
    numbers = torch.arange(16.0).reshape(4, 4)
    for first, second in itertools.product(dtypes, repeat=2):
        if {first, second} == {torch.bfloat16, torch.complex64}:  # from torch 2.15 on, a dtype that most operators lack
            continue
        for x, y in plain(numbers.to(first), (numbers + 1).to(second)):
            above = function(x, y)
            with torch._C._AutoDispatchBelowAutograd():
                below = function(x, y)

            torch.testing.assert_close(below, above, rtol=0, atol=0, check_stride=True)
            assert (above._is_view(), above._version) == (below._is_view(), below._version) == (False, 0)


@pytest.mark.parametrize("rule", [lambda grad, x: grad * x, lambda grad, x: grad + grad, lambda grad, x: -grad])
def test_a_sparse_gradient_has_no_version_of_its_own(rule):
    op = declare(product, rule)
    x = torch.ones(3, requires_grad=True)
    found = [torch.autograd.grad(op(x), x, torch.ones(3).to_sparse())[0]._version for _ in range(4)]

    assert [0] * 4 == found


@pytest.mark.parametrize("mode", [FunctionLog, DispatchLog])
@pytest.mark.parametrize("rule", [lambda grad, x: 2 * (grad * x), lambda grad, x: 2 * (grad @ x).t()])
def test_a_mode_in_the_backward_sees_the_same_in_every_call(mode, rule):
    op = declare(lambda x: x * x, rule)
    x = torch.ones(3, 3, requires_grad=True)
    seen = []
    for _ in range(6):
        total = op(x).sum()
        with mode() as watching:
            total.backward()
        seen.append(watching.names)
        op(x).sum().backward()

    assert seen[0]
    assert [seen[1]] * 5 == seen[1:]  # the first backward adds no gradient to another


def test_an_arithmetic_rule_is_recorded_where_grad_mode_is_on():
    op = declare(lambda x: x * x, lambda grad, x: 2 * (grad * x))
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(3):
        (first,) = torch.autograd.grad(op(x).sum(), x)
        (recorded,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(recorded.sum(), x)

    assert not first.requires_grad
    assert [2.0] * 3 == second.tolist()


def test_an_arithmetic_rule_keeps_tangents_of_incoming_gradients():
    op = declare(lambda x: x * x, lambda grad, x: 2 * (grad * x))
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    with forward.dual_level():
        grad = forward.make_dual(torch.ones(3), torch.full((3,), 5.0))
        (found,) = torch.autograd.grad(op(x), x, grad)
        tangent = forward.unpack_dual(found).tangent

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
    op = declare(lambda x: x * x, lambda grad, x: grad * x)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    x.grad = None
    op(x).backward(torch.ones(3).as_subclass(Doubling))

    assert [2.0] * 3 == x.grad.tolist()


# ----------------------------------------------------------------------------------- what would be different there


def test_a_function_that_is_given_other_code_is_read_again():
    def kernel(x):
        return x * 2

    def rule(grad, x):
        return grad * 2

    op = declare(kernel, rule)
    x = torch.ones(3, requires_grad=True)
    for _ in range(5):
        op(x).sum().backward()
    kernel.__code__ = (lambda x: torch.autograd.functional.jacobian(torch.square, x.detach()).sum(0)).__code__
    rule.__code__ = (
        lambda grad, x: grad * torch.autograd.functional.jacobian(torch.square, x.detach()).sum(0)
    ).__code__
    x.grad = None
    result = op(x)
    result.sum().backward()

    assert [2.0] * 3 == result.tolist() == x.grad.tolist()


def test_a_rule_computes_gradients_in_every_call():
    op = declare(lambda x: x**2, lambda grad, x: grad * by_engine(x) / 2)
    x = torch.ones(3, requires_grad=True)
    for _ in range(4):
        x.grad = None
        op(x).sum().backward()

    assert [2.0] * 3 == x.grad.tolist()


def test_an_op_inside_a_kernel_records_nothing():
    inner = declare(lambda x: x * 3, lambda grad: grad * 3)
    outer = declare(lambda x: inner(x) + inner(x), lambda grad, x: grad * 6)
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

    op = declare(kernel)
    before = state._version
    for _ in range(4):
        op(torch.ones(3))

    assert before + 4 == state._version


def test_a_view_of_an_input_is_still_found():
    op = declare(lambda x, is_view: x[1:] if is_view else x[1:] * 1, schema="(Tensor x, bool is_view) -> Tensor")
    for _ in range(3):
        op(torch.ones(3), False)
    with pytest.raises(Exception, match=r"view|alias|share"):
        op(torch.ones(3), True)


def in_forward_mode(x):
    with forward.dual_level():
        return forward.unpack_dual(forward.make_dual(x, torch.full_like(x, 2)).square()).tangent.clone()


def by_engine(x):
    with torch.enable_grad():
        alias = x.detach().requires_grad_()
        (2 * alias**2).sum().backward()
        return alias.grad


def by_linearizing(x):
    return torch.func.linearize(torch.square, x)[1](torch.full_like(x, 2)).clone()


SOLVERS = {
    "the engine": by_engine,
    "a jacobian": lambda x: jacobian(lambda t: 2 * t**2, x).sum(0),
    "a transform": lambda x: torch.func.grad(lambda t: (2 * t**2).sum())(x),
    "forward mode": in_forward_mode,
    "linearize": by_linearizing,
}


@each("solve", SOLVERS.values(), ids=SOLVERS)
@each("grad_mode", [torch.no_grad, torch.enable_grad])
def test_a_kernel_computes_gradients_in_every_call_and_in_later_ones_only(solve, grad_mode):
    def kernel(x, is_solving):
        return solve(x) if is_solving else x * 2

    op = declare(kernel, schema="(Tensor x, bool is_solving) -> Tensor")
    x = torch.arange(3.0)
    with grad_mode():
        for _ in range(3):
            op(x, False)

        assert [[0.0, 4.0, 8.0]] * 5 == [op(x, True).tolist() for _ in range(5)]


@pytest.mark.parametrize("solve", [by_engine, SOLVERS["a jacobian"], SOLVERS["a transform"]])
def test_a_kernel_computes_gradients_in_recorded_calls(solve):
    op = declare(solve)
    x = torch.arange(3.0, requires_grad=True)

    assert [[0.0, 4.0, 8.0]] * 5 == [op(x).tolist() for _ in range(5)]


@each("requires_grad", [False, True], ids=["plain", "recorded"])
@each(
    "kernel",
    [
        lambda x: torch.stack([x[0], x[1]]),
        lambda x: x.repeat(2, 1),
        lambda x: torch.nn.functional.layer_norm(x, (2,)),
        lambda x: torch.nn.functional.conv1d(x[None], torch.ones(2, 2, 1))[0] * 1,
        lambda x: torch.select_scatter(x, x[0], 0, 1),
        lambda x: x @ x,
    ],
)
def test_an_output_is_no_view_and_can_be_written_to_in_every_call(kernel, requires_grad):
    op = declare(kernel, schema="(Tensor x) -> Tensor")
    weight = torch.full((2,), 2.0, requires_grad=True)
    x = torch.eye(2, requires_grad=requires_grad)
    expected = kernel(x.detach()) * weight
    for _ in range(6):
        result = op(x)

        assert not result._is_view()
        torch.testing.assert_close(result.mul_(weight), expected)


def test_a_kernel_can_detach_a_tensor_that_required_a_gradient():
    def kernel(x):
        y = x.clone().requires_grad_()
        return y.detach_()

    op = declare(kernel)

    assert [False] * 5 == [op(torch.ones(3)).requires_grad for _ in range(5)]


def test_a_mode_in_a_kernel_sees_the_same_in_every_call():
    seen = []

    def kernel(x):
        with DispatchLog() as watching:
            y = torch.nn.functional.linear(x, x)
        seen.append(watching.names)
        return y

    op = declare(kernel)
    for _ in range(5):
        op(torch.ones(3, 3))

    assert [seen[0]] * 5 == seen
