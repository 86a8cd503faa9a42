"""on_backward_end: once for each backward and function, after failures too, and never silently in compiled code."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor

from custom_autograd import GradientError, custom_op, on_backward_end

pytestmark = pytest.mark.usefixtures("fresh_compiler")

LOG: list[str] = []


@pytest.fixture(autouse=True)
def empty_log():
    LOG.clear()


def declare(name, rule):
    @custom_op(f"backward_end::{name}", replace=True)
    def op(x: Tensor) -> Tensor:
        return x * 1

    op.register_fake(torch.empty_like)
    op.register_backward(rule)
    return op


def note_success():
    LOG.append("success")


def note_always():
    LOG.append("always")


def fail():
    raise ValueError("at the end")


def with_both(grad):
    on_backward_end(note_success)
    on_backward_end(note_always, "always")
    return grad


def failing(grad):
    raise ZeroDivisionError


noting, broken = declare("noting", with_both), declare("broken", failing)


def x():
    return torch.ones(3, requires_grad=True)


def test_it_runs_at_the_end_of_each_backward():
    leaf = x()
    seen = []
    watching = declare("watching", lambda grad: (on_backward_end(lambda: seen.append(leaf.grad.clone())), grad)[1])
    for _ in range(2):
        watching(leaf * 2).sum().backward()

    assert [[2.0] * 3, [4.0] * 3] == [grad.tolist() for grad in seen]


def test_a_function_runs_once_for_each_backward_however_many_rules_give_it():
    noting(noting(noting(x()))).sum().backward()

    assert ["success", "always"] == LOG


def test_equal_methods_and_functions_that_cannot_be_hashed_run_once():
    class Counter:
        __hash__ = None
        number = 0

        def __call__(self):
            self.number += 1

    counter, items = Counter(), []
    rule = declare("methods", lambda grad: (on_backward_end(counter), on_backward_end(items.sort), grad)[2])
    rule(rule(x())).sum().backward()

    assert 1 == counter.number


def test_a_hook_may_give_a_function():
    tensor = x() * 2
    tensor.register_hook(lambda grad: on_backward_end(note_success) and None)
    tensor.sum().backward()

    assert ["success"] == LOG


def test_a_failed_backward_runs_what_always_runs_before_the_error_arrives():
    y = noting(broken(noting(x()))).sum()
    try:
        y.backward()
    except ZeroDivisionError:
        LOG.append("caught")

    assert ["always", "caught"] == LOG
    LOG.clear()
    noting(x()).sum().backward()
    assert ["success", "always"] == LOG


def test_the_wider_when_of_one_function_holds():
    both = declare(
        "both", lambda grad: (on_backward_end(note_success), on_backward_end(note_success, "always"), grad)[2]
    )
    with pytest.raises(ZeroDivisionError):
        both(broken(both(x()))).sum().backward()

    assert ["success"] == LOG


@pytest.mark.parametrize("backward", ["grad", "vjp", "inputs", "create_graph"])
def test_every_kind_of_backward(backward):
    leaf = x()
    if backward == "grad":
        torch.autograd.grad(noting(leaf).sum(), leaf)
    elif backward == "vjp":
        torch.func.grad(lambda x: noting(x).sum())(leaf)
    elif backward == "inputs":
        noting(leaf).sum().backward(inputs=[leaf])
    else:
        torch.autograd.grad(noting(leaf).sum(), leaf, create_graph=True)

    assert ["success", "always"] == LOG


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails, which the rule catches"])
def test_a_backward_within_a_backward_has_an_end_of_its_own(fails):
    def rule(grad):
        on_backward_end(lambda: LOG.append("outer"))
        with torch.enable_grad(), pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            (noting(broken(noting(x()))) if fails else noting(x())).sum().backward()
        LOG.append("rule")
        return grad

    declare("outer", rule)(x()).sum().backward()

    assert [*(["always"] if fails else ["success", "always"]), "rule", "outer"] == LOG


def test_what_a_function_gives_at_the_end_runs_afterwards():
    def give():
        LOG.append("first")
        on_backward_end(lambda: LOG.append("second"))

    declare("giving", lambda grad: (on_backward_end(give), grad)[1])(x()).sum().backward()

    assert ["first", "second"] == LOG


def test_an_error_at_the_end_leaves_the_backward_and_what_always_runs_runs():
    def rule(grad):
        on_backward_end(fail)
        on_backward_end(note_success)
        on_backward_end(note_always, "always")
        return grad

    with pytest.raises(ValueError, match="at the end"):
        declare("ending", rule)(x()).sum().backward()

    assert ["always"] == LOG


def test_an_error_after_a_failure_is_reported_and_the_others_run(monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_type))

    def rule(grad):
        on_backward_end(fail, "always")
        on_backward_end(note_always, "always")
        return grad

    twice = declare("twice", rule)
    with pytest.raises(ZeroDivisionError):
        twice(broken(twice(x()))).sum().backward()

    assert [ValueError] == reported
    assert ["always"] == LOG


def test_threads_do_not_see_each_others_backwards():
    def work():
        for _ in range(50):
            noting(x()).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 200 == LOG.count("success") == LOG.count("always")


def test_outside_of_a_backward_it_is_an_error():
    assert_expected_inline(
        message(lambda: on_backward_end(note_success)),
        """\
GradientError: on_backward_end: there is no backward in progress in this thread
  do         call it in a gradient rule, or in a hook of a tensor or a node""",
    )


def test_another_when_is_an_error():
    with pytest.raises(ValueError, match='when is "success" or "always", and not \'later\''):
        on_backward_end(note_success, "later")


TRACED = "on_backward_end: the backward is traced by a compiler, and the graph would not hold the call"


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_compiled_code_raises():
    with pytest.raises(Exception, match=TRACED):
        torch.compile(lambda x: noting(x).sum(), backend="aot_eager")(x()).backward()


def test_compiled_autograd_raises():
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(GradientError, match=TRACED),
    ):
        noting(x()).sum().backward()


def test_a_graph_that_is_recorded_raises():
    from torch.fx.experimental.proxy_tensor import make_fx

    with pytest.raises(GradientError, match=TRACED):
        make_fx(torch.func.grad(lambda x: noting(x).sum()))(torch.ones(3))
