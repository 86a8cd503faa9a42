"""The first call of an op is native where the library is loaded: proven, run on trial, and remembered if it passes."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from custom_autograd import GradientError, KernelError, custom_op
from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.native.loading import library
from custom_autograd.native.native_calls import NativeCalls
from custom_autograd.registration.rule_types import GradientRule

NUMBERS = itertools.count()
native = pytest.mark.skipif(library.module is None, reason=library.reason)


def declare(kernel, schema="(Tensor x, Tensor y) -> Tensor", **options):
    return custom_op(f"first_calls::op_{next(NUMBERS)}", kernel, schema=schema, **options)


def product():
    op = declare(lambda x, y: x * y)
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    op.register_fake(lambda x, y: torch.empty_like(x))
    return op


def count_kinds(op):
    return op._record.road.native.call.count_kinds()


@native
def test_a_kind_is_known_once_its_first_call_has_passed():
    op, x, y = product(), torch.ones(2), torch.ones(3, 2)
    counts = []
    for _ in range(3):
        op(x, x)
        counts.append(count_kinds(op))
    for _ in range(2):
        op(y, y)
        counts.append(count_kinds(op))

    assert [1, 1, 1, 2, 2] == counts


@native
def test_a_first_call_with_gradients_records_a_native_node():
    op, x = product(), torch.full((2,), 3.0, requires_grad=True)
    out = op(x, torch.full((2,), 5.0))
    out.sum().backward()

    assert ([15.0, 15.0], [5.0, 5.0]) == (out.tolist(), x.grad.tolist())
    assert hasattr(out.grad_fn, "_count_saved")  # which only native nodes have


@native
def test_sizes_are_looked_at_from_the_first_call_on():
    op = declare(lambda x, y: x * y, shapes="x: n, y: n -> output: n")
    two, three = torch.ones(2), torch.ones(3)
    for _ in range(2):
        with pytest.raises(ValueError, match="'y' must be"):
            op(two, three)
    found = [op(two, two).tolist() for _ in range(2)]
    with pytest.raises(ValueError, match="'y' must be"):
        op(two, three)

    assert [[1.0, 1.0]] * 2 == found
    assert 1 == count_kinds(op)


@native
def test_what_may_be_written_to_is_no_finding():
    """Neither is a tensor without elements, nor one that shares memory with what is written to."""
    op = declare(lambda x, y: [x.add_(y)].clear(), "(Tensor(a!) x, Tensor y) -> ()", mutates_args=("x",))
    x, empty = torch.ones(4), torch.ones(0)
    for _ in range(2):
        op(x[:2], x[2:])
        op(x, x)
        op(empty, empty)

    assert [12.0, 12.0, 4.0, 4.0] == x.tolist()
    assert 2 == count_kinds(op)


def moved(x, y):
    out = y * 2
    x.set_(out)
    return out


def grown(x, y):
    x.resize_(4).copy_(y)
    return torch.from_numpy(x.numpy())


def in_one_memory(x, y):
    memory = torch.zeros(4)
    return memory[:2].detach().set_(memory), memory


PAIR, WRITING = "(Tensor x, Tensor y) -> (Tensor, Tensor)", "(Tensor(a!) x, Tensor y) -> Tensor"
WRONG = {
    "writes, which only PyTorch's version counter shows": (lambda x, y: x.add_(1) * y, {}, "writes to its input 'x'"),
    "returns the memory of its input": (
        lambda x, y: torch.from_numpy(x.numpy()),
        {},
        "shares memory with input 'x'",
    ),
    "returns one memory twice": (in_one_memory, {"schema": PAIR}, "shares memory with output 'output_0'"),
    "gives its input the memory of a result": (
        moved,
        {"schema": WRITING, "mutates_args": ("x",)},
        "shares memory with input 'x'",
    ),
    "returns the memory that it gave its input": (
        grown,
        {"schema": WRITING, "mutates_args": ("x",)},
        "shares memory with input 'x'",
    ),
}


@pytest.mark.parametrize(("kernel", "options", "problem"), WRONG.values(), ids=WRONG)
def test_what_a_kernel_does_wrong_is_found_in_the_first_call_and_not_remembered(kernel, options, problem):
    op = declare(kernel, **options)
    for _ in range(2):
        with pytest.raises(KernelError, match=problem):
            op(torch.empty(0) if "mutates_args" in options else torch.ones(4), torch.ones(4))


def test_a_first_call_that_python_records_is_checked_in_full():
    """A rule that asks for metadata has no native nodes."""
    op = declare(lambda x, y: x.add_(1) * y)
    op.register_backward(lambda grad, x, y, meta: (grad * y, grad * x))
    for _ in range(2):
        with pytest.raises(KernelError, match="writes to its input 'x'"):
            op(torch.ones(2, requires_grad=True), torch.ones(2))


@pytest.mark.usefixtures("both_calls")
def test_a_tensor_that_shares_some_memory_with_what_is_written_to_may_change():
    def kernel(x, y):
        x.add_(1)
        y.add_(1)

    op = declare(kernel, "(Tensor(a!) x, Tensor y) -> ()", mutates_args=("x",))
    memory = np.ones(4)
    x, y = torch.from_numpy(memory[:3]), torch.from_numpy(memory[1:])
    op(x, y)

    assert [2.0, 3.0, 3.0, 2.0] == memory.tolist()


@native
def test_an_op_that_is_declared_while_native_code_is_loaded_has_its_native_call():
    op = product()

    assert 0 == count_kinds(op)


@native
def test_an_op_that_is_declared_before_native_code_is_loaded_has_it_from_its_first_call_on(monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(NativeCalls, "are_learnt", False)
        op = product()
    assert op._record.road.native is None

    assert torch.equal(torch.full((2,), 6.0), op(torch.full((2,), 2.0), torch.full((2,), 3.0)))
    assert 1 == count_kinds(op)


def test_many_threads_run_the_first_backward():
    op, barrier, found = product(), threading.Barrier(8), []

    def run():
        x = torch.full((2,), 3.0, requires_grad=True)
        out = op(x, torch.full((2,), 5.0)).sum()
        barrier.wait()
        out.backward()
        found.append(x.grad.tolist())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [[5.0, 5.0]] * 8 == found


@native
def test_a_kernel_that_fails_once_is_proven_by_the_next_call():
    fails = [True]

    def kernel(x, y):
        if fails.pop():
            raise ValueError("not now")
        fails.append(False)
        return x * y

    op = declare(kernel)
    with pytest.raises(ValueError, match="not now"):
        op(torch.ones(2), torch.ones(2))
    fails.append(False)
    found = [op(torch.ones(2), torch.ones(2)).tolist() for _ in range(3)]

    assert [[1.0, 1.0]] * 3 == found
    assert 1 == count_kinds(op)


def test_a_wrong_gradient_of_the_first_call_is_refused():
    op = declare(lambda x, y: x * y)
    op.register_backward(lambda grad, x, y: (grad[:1], grad))
    with pytest.raises(GradientError, match="the gradient of 'x' has the wrong shape"):
        op(torch.ones(2, requires_grad=True), torch.ones(2)).sum().backward()


def test_a_first_call_within_a_kernel_of_the_same_op():
    def factorial(x, n):
        return x.clone() if n <= 1 else op(x, n - 1) * n

    op = declare(factorial, "(Tensor x, int n) -> Tensor")

    assert [120.0] == op(torch.ones(1), 5).tolist()
    assert [120.0] == op(torch.ones(1), 5).tolist()


def test_rules_that_are_registered_during_the_first_call_apply_to_the_next():
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        if not op._record.registrations.all_of(GradientRule):
            op.register_backward(lambda grad, x, y: (grad * y, grad * x))
        return x * y

    op = declare(kernel)
    op(torch.ones(2), torch.ones(2))
    x = torch.ones(2, requires_grad=True)
    op(x, torch.full((2,), 4.0)).sum().backward()

    assert [4.0, 4.0] == x.grad.tolist()


def test_other_handles_and_modes_meet_the_op_before_its_first_call():
    op = product()
    with torch.autograd.profiler.profile() as profile:
        op(torch.ones(2), torch.ones(2))
    x = torch.ones(2)
    _, tangent = torch.func.jvp(lambda x: op(x, x), (x,), (x,))

    assert op._record.name in {event.name for event in profile.function_events}
    assert [2.0, 2.0] == tangent.tolist()
    assert [1.0, 1.0] == op(x, x).tolist()


def test_a_caller_that_was_compiled_after_a_native_call_is_not_compiled_again(fresh_compiler):
    op, x = product(), torch.ones(2)
    op(x, x)
    frames = []

    def backend(module, _):
        frames.append(module)
        return module.forward

    compiled = torch.compile(lambda x: op(x, x) + 1, backend=backend, fullgraph=True)
    compiled(x)
    op(x.double(), x.double())
    torch.func.grad(lambda x: op(x, x).sum())(x)
    compiled(x)

    assert 1 == len(frames)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_kernel_that_is_unavailable_in_the_first_call_of_a_kind_is_replaced(requires_grad):
    op = declare(lambda x, y: x * y)
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))

    @op.register_kernel("cpu", name="fast")
    def fast(x, y):
        if x.dtype == torch.float64:
            raise KernelUnavailable("no doubles")
        return x * y

    op(torch.ones(2), torch.ones(2))
    for _ in range(2):
        x = torch.full((2,), 3.0, dtype=torch.float64, requires_grad=requires_grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KernelWarning)

            assert [3.0, 3.0] == op(x, torch.ones(2, dtype=torch.float64)).tolist()


def test_threads_that_make_first_calls_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failures = []

    def call(op, barrier):
        barrier.wait()
        try:
            for dtype in (torch.float32, torch.float64):
                x = torch.full((2,), 3.0, dtype=dtype, requires_grad=True)
                op(x, torch.full((2,), 5.0, dtype=dtype)).sum().backward()
                assert x.grad.tolist() == [5.0, 5.0]
        except Exception as error:  # noqa: BLE001 - it is looked at below
            failures.append(error)

    try:
        for _ in range(40):
            op, barrier = product(), threading.Barrier(4)
            threads = [threading.Thread(target=call, args=(op, barrier)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert [] == failures


def test_a_setup_context_that_uses_all_of_torchs_ctx_gets_it():
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty()
        ctx.mark_shared_storage()
        ctx.save_for_backward(inputs[1])

    op = declare(lambda x, y: x * y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mark_shared_storage is deprecated
        op.register_autograd(lambda ctx, grad: (grad * ctx.saved_tensors[0], None), setup_context=setup_context)
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            op(x, torch.full((2,), 5.0)).sum().backward()

            assert [5.0, 5.0] == x.grad.tolist()
