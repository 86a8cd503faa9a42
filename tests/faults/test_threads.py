"""The check `threads` fails an op whose threads share what should be each call's own."""

import threading
import time

import pytest
import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls import ways
from slow_cases import slow_but_every

result_of = verdict("threads", lambda make: [Sample(make(4, 3))])


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class SharesWorkspace(Squared):
    workspace = torch.empty(4, 3, dtype=torch.float64)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        SharesWorkspace.workspace.copy_(x)
        time.sleep(0)  # another thread may run here, as it may anywhere
        return SharesWorkspace.workspace * x


class RefusesWhileBusy(Squared):
    is_busy = False

    @staticmethod
    def forward(ctx, x):
        if RefusesWhileBusy.is_busy:
            raise RuntimeError("another call is at work")
        RefusesWhileBusy.is_busy = True
        time.sleep(0)  # as above
        RefusesWhileBusy.is_busy = False
        return Squared.forward(ctx, x)


class ReadsThreadLocal(Squared):
    local = threading.local()

    @staticmethod
    def forward(ctx, x):
        ReadsThreadLocal.local.factor = 2.0
        return Squared.forward(ctx, x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return ReadsThreadLocal.local.factor * grad * x


class WaitsForAnother(Squared):
    """A call in a thread waits for what only another would do."""

    never = threading.Event()

    @staticmethod
    def forward(ctx, x):
        if threading.current_thread() is not threading.main_thread():
            WaitsForAnother.never.wait()
        return Squared.forward(ctx, x)


@pytest.mark.parametrize(
    "op", slow_but_every(3, [Squared, torch.sin, torch.nn.functional.gelu]), ids=lambda op: op.__name__
)
def test_op_that_shares_nothing_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


def test_shared_workspace_fails():
    result = result_of(SharesWorkspace)

    assert "failed" == result.status
    assert result.message.startswith("in 8 threads at once: output 0[")
    assert "state that all threads share" in result.cause


def test_call_that_raises_while_another_is_at_work_fails():
    result = result_of(RefusesWhileBusy)

    assert "failed" == result.status
    assert "in 8 threads at once: the op raises RuntimeError: another call is at work" == result.message


def test_backward_that_reads_what_its_own_thread_left_fails():
    result = result_of(ReadsThreadLocal)

    assert "failed" == result.status
    assert result.message.startswith("with its backward in another thread: the op raises AttributeError: ")


def test_random_op_is_skipped():
    result = result_of(torch.nn.functional.dropout)

    assert "skipped" == result.status
    assert "random numbers" in result.message


def test_calls_that_wait_for_each_other_for_ever_fail(monkeypatch):
    monkeypatch.setattr(ways, "LIMIT", 0.2)

    result = result_of(WaitsForAnother)
    WaitsForAnother.never.set()  # the threads end

    assert "failed" == result.status
    assert "in 8 threads at once: not all have ended after 0.2 s" == result.message
    assert "a lock that one call holds while it waits for another" == result.cause


def test_threads_leave_the_generator_of_torch_alone(monkeypatch):
    """Torch deadlocks where two threads ask for its state and garbage is collected while one of them is given it."""
    asking = []
    get_rng_state = torch.get_rng_state

    def noted():
        asking.append(type(threading.current_thread()).__name__)
        return get_rng_state()

    monkeypatch.setattr(torch, "get_rng_state", noted)

    assert "passed" == result_of(Squared, isolated=False).status
    assert "_MainThread" in asking
    assert "_Worker" not in asking


def test_an_op_without_gradients_that_shares_memory_fails():
    memory = torch.empty(4, 3, dtype=torch.float64)

    def counted(x):
        memory.copy_(x)
        time.sleep(0)  # another thread may run here, as it may anywhere
        return (memory * 1000).long()

    result = result_of(counted)

    assert "failed" == result.status
    assert "in 8 threads at once: output 0[" in result.message
