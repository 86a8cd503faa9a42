"""Calls of overloads, as compiled graphs make them: native where the same call of the op would be."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from custom_autograd import KernelError, custom_op
from custom_autograd.native.loading import library
from custom_autograd.torch_private.dispatch import function_of

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


@custom_op("native_overloads::norm", outputs=["out", "rstd"], hidden=["rstd"])
def norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * rstd if weight is None else x * rstd * weight), rstd


@norm.register_backward
def _(grad_out, x, weight, rstd):
    weighted = grad_out if weight is None else grad_out * weight
    normal = x * rstd
    return {
        "x": rstd * (weighted - normal * (weighted * normal).mean(-1, keepdim=True)),
        "weight": None if weight is None else (grad_out * normal).sum(0),
    }


@pytest.fixture
def calls():
    """A list with the input of each call of a kernel, and the op."""
    ran = []

    @custom_op("native_overloads::counted", replace=True)
    def counted(x: Tensor, factor: float = 2.0) -> Tensor:
        ran.append(x)
        return x * factor

    counted.register_backward(lambda grad, factor: grad * factor)
    counted.register_fake(lambda x, factor: torch.empty_like(x))
    return ran, counted


def drawn(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def is_native(op):
    return type(function_of(op.overload)) is library.module.Overload


def known(op, *args, **kwargs):
    for _ in range(3):
        op.overload(*args, **kwargs)
    return op.overload


def test_an_overload_returns_hidden_outputs():
    x, weight = drawn(4, 3, grad=True), drawn(3, grad=True)
    overload = known(norm, x, weight, eps=1e-5)
    out, rstd = overload(x, weight, eps=1e-5)

    assert is_native(norm)
    assert isinstance(out.grad_fn, library.module.Node)
    torch.testing.assert_close(out, norm(x, weight, eps=1e-5))
    assert (4, 1) == rstd.shape
    assert "native_overloads::normBackward" == out.grad_fn.name()
    found = torch.autograd.grad(out.sum(), (x, weight))
    torch.testing.assert_close(found, torch.autograd.grad(norm(x, weight, eps=1e-5).sum(), (x, weight)))


def test_arguments_are_bound_as_by_the_dispatcher(calls):
    ran, op = calls
    x = drawn(3)
    overload = known(op, x)

    for call in (
        lambda: overload(x, 3.0),
        lambda: overload(x, factor=3.0),
        lambda: overload(x=x, factor=3),
        lambda: overload(x, 3),
    ):
        torch.testing.assert_close(call(), x * 3)
    with pytest.raises(RuntimeError, match="expected at most 2 argument"):
        overload(x, 3.0, 4.0)
    with pytest.raises(RuntimeError, match=r"argument .?x.?\b.*|missing"):
        overload()
    with pytest.raises(RuntimeError, match="Unknown keyword argument"):
        overload(x, scale=3.0)
    assert ran


def test_it_is_the_same_object_for_tables_of_ops(calls):
    _, op = calls
    table, before = {op.overload: 1}, hash(op.overload)
    x = drawn(3)
    known(op, x)

    assert is_native(op)
    assert before == hash(op.overload)
    assert 1 == table[op.overload]
    assert copy.deepcopy(op.overload) is op.overload
    assert "counted" in str(op.overload)
    assert op.overload.op is function_of(op.overload)
    assert isinstance(op.overload.op.__name__, str)


def test_a_handle_is_native_from_its_first_call_on(calls):
    _, op = calls
    x = drawn(3)
    known(op, x)
    for _ in range(3):
        torch.testing.assert_close(op(x), 2 * x)

    assert op._native is not None
    assert op._vectorcall != 0


def test_modes_see_a_call(calls):
    _, op = calls
    x, seen = drawn(3), []
    overload = known(op, x)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        overload(x)

    assert op.overload in seen


def test_graphs_hold_a_call(calls):
    ran, op = calls
    overload = known(op, drawn(3))
    count = len(ran)
    graph = make_fx(lambda x: overload(x), tracing_mode="fake")(drawn(3))
    with FakeTensorMode():
        assert (3,) == overload(torch.empty(3)).shape

    assert op.overload in [node.target for node in graph.graph.nodes]
    assert count == len(ran)


def test_transforms_and_forward_mode(calls):
    _, op = calls
    x = drawn(3)
    overload = known(op, x)

    torch.testing.assert_close(torch.func.vmap(overload)(drawn(2, 3)).shape, torch.Size([2, 3]))
    torch.testing.assert_close(torch.func.grad(lambda x: overload(x).sum())(x), torch.full_like(x, 2))
    torch.testing.assert_close(torch.func.jvp(overload, (x,), (x,))[1], 2 * x)


def test_what_is_below_autograd_stays_below(calls):
    _, op = calls
    x = drawn(3, grad=True)
    overload = known(op, x)
    with torch._C._AutoDispatchBelowAutograd():
        for _ in range(3):
            assert not overload(x).requires_grad

    assert overload(x).requires_grad


def test_a_rule_that_is_registered_later_takes_effect(calls):
    _, op = calls
    x = drawn(3, grad=True)
    overload = known(op, x)
    op.register_backward(lambda grad: 7 * grad, replace=True)

    assert torch.equal(torch.full_like(x, 7), torch.autograd.grad(overload(x).sum(), x)[0])
    op.register_kernel("cpu", lambda x, factor: x * 0)
    assert torch.equal(torch.zeros_like(x), overload(x))


def test_the_overload_of_a_replaced_op_is_the_new_ops():
    def declare(factor):
        op = custom_op("native_overloads::replaced", lambda x: x * factor, schema="(Tensor x) -> Tensor", replace=True)
        op.register_backward(lambda grad: grad * factor)
        return op

    x = drawn(3)
    old = declare(2)
    known(old, x)
    new = declare(3)  # the overload that was the old op's must not be called: torch reads freed memory

    torch.testing.assert_close(torch.ops.native_overloads.replaced(x), x * 3)
    torch.testing.assert_close(torch.ops.native_overloads.replaced.default(x), x * 3)
    for _ in range(3):
        torch.testing.assert_close(old(x), x * 2)
        torch.testing.assert_close(known(new, x)(x), x * 3)


MISTAKES = {
    "raises": (lambda x: 1 / 0 if x.shape[0] > 3 else x + 1, ZeroDivisionError, "division by zero"),
    "returns its input": (lambda x: x if x.shape[0] > 3 else x + 1, KernelError, "shares memory"),
}


@pytest.mark.parametrize(("kernel", "error", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_a_kernel_is_an_error_of_every_call(kernel, error, text):
    op = custom_op("native_overloads::mistaken", kernel, schema="(Tensor x) -> Tensor", replace=True)
    overload = known(op, drawn(3))

    for _ in range(2):
        with pytest.raises(error, match=text):
            overload(drawn(4))


def test_compiled_code_calls_it_and_takes_it_apart(calls, fresh_compiler):
    _, op = calls
    known(op, drawn(3))
    x = drawn(3, grad=True)
    compiled = torch.compile(lambda x: op(op(x) + 1), backend="aot_eager", fullgraph=True)
    (grad,) = torch.autograd.grad(compiled(x).sum(), x)

    torch.testing.assert_close(grad, torch.full_like(x, 4))
    torch.testing.assert_close(compiled(x), (2 * x + 1) * 2)


def test_threads(calls):
    _, op = calls
    overload, errors = known(op, drawn(3)), []

    def work(factor):
        for _ in range(300):
            x = drawn(4, grad=True)
            overload(x, factor).sum().backward()
            if not torch.equal(x.grad, torch.full_like(x, factor)):
                errors.append(factor)

    threads = [threading.Thread(target=work, args=(float(factor),)) for factor in range(1, 5)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        op.register_vmap(lambda info, in_dims, x, factor: (x * factor, in_dims[0]), replace=True)
    for thread in threads:
        thread.join()

    assert [] == errors


def test_nothing_is_kept_alive():
    def run():
        op = custom_op("native_overloads::freed", lambda x: x + 1, schema="(Tensor x) -> Tensor", replace=True)
        x = drawn(3, grad=True)
        op.register_backward(lambda grad: grad)
        known(op, x)(x).sum().backward()
        return weakref.ref(x)

    seen = run()
    gc.collect()
    assert seen() is None
