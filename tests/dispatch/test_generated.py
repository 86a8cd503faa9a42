"""Generated code: each part of it is made when it is first used, and again after a change of the rules."""

from __future__ import annotations

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.execution.proofs import through_dispatcher
from custom_autograd.execution.source import Source
from custom_autograd.native.loading import library

NUMBERS = itertools.count()
PARTS = {"_kernel", "recording", "_autograd"}


@pytest.fixture
def op():
    @custom_op(f"generated::multiply_{next(NUMBERS)}")
    def multiply(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    multiply.register_fake(lambda x, y: torch.empty_like(x))
    multiply.register_backward(lambda grad, x, y: (grad * y, grad * x))
    return multiply


def parts_of(op):
    return PARTS & set(vars(generated_code_of(op._record)))


def test_a_call_through_the_dispatcher_needs_all_parts(op, generated_python):
    op(torch.ones(2), torch.ones(2))

    assert PARTS == parts_of(op)


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_a_native_call_with_gradients_and_its_backward_need_no_part(op):
    for _ in range(3):
        op(torch.ones(2, requires_grad=True), torch.ones(2)).backward(torch.ones(2))

    assert set() == parts_of(op)
    assert not op._record.road.called


def test_the_call_that_compilers_trace_is_generated_when_they_do(op, fresh_compiler):
    x, y = torch.ones(2), torch.full((2,), 3.0)
    found = torch.compile(lambda x: op(x, y=y) + 1, backend="aot_eager", fullgraph=True)(x)

    assert [4.0, 4.0] == found.tolist()


def test_a_compiler_that_traced_the_generated_call_traces_again_after_a_new_rule(op, fresh_compiler, generated_python):
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    compiled = torch.compile(lambda x: op(x, y), backend="aot_eager", fullgraph=True)
    found = []
    for factor in (2, 3, 4):
        op(x, y)
        op.register_backward(lambda grad, factor=factor: (grad * factor, None), replace=True)
        for _ in range(2):
            found.append(torch.autograd.grad(compiled(x).sum(), x)[0].tolist())
            op(x, y)

    assert [[factor * 1.0] * 2 for factor in (2, 2, 3, 3, 4, 4)] == found


def test_the_dispatcher_below_autograd_needs_the_kernel(op):
    with torch.inference_mode(), through_dispatcher():
        op.overload(torch.ones(2), torch.ones(2))

    assert {"_kernel"} == parts_of(op)


def test_the_source_is_that_of_all_parts(op):
    code = generated_code_of(op._record)
    texts = [code._kernel[0], code.recording.source, code._autograd[0]]

    assert all(text.strip() in op.source for text in texts)
    assert sorted(map(op.source.index, map(str.strip, texts))) == list(map(op.source.index, map(str.strip, texts)))


def test_a_change_of_the_rules_replaces_what_was_made(op):
    x = torch.ones(2, requires_grad=True)
    op(x, torch.ones(2)).sum().backward()
    before = generated_code_of(op._record)
    op.register_backward(lambda grad, x, y: (grad * 5, None), replace=True)
    x.grad = None
    op(x, torch.ones(2)).sum().backward()

    assert generated_code_of(op._record) is not before
    assert [5.0, 5.0] == x.grad.tolist()


@pytest.mark.parametrize("line", range(0, 60, 7))
def test_code_is_written_anew_after_an_exception_while_it_was_written(op, line, monkeypatch):
    """As from Ctrl-C, or where the stack ends."""
    count, write = [0], Source.line

    def interrupted(self, text=""):
        count[0] += 1
        if count[0] == line + 1:
            raise KeyboardInterrupt
        write(self, text)

    x = torch.ones(2, requires_grad=True)
    with monkeypatch.context() as patch, through_dispatcher():
        patch.setattr(Source, "line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            op(x, torch.ones(2))
    with through_dispatcher():
        op(x, torch.full((2,), 3.0)).sum().backward()

    assert [3.0, 3.0] == x.grad.tolist()


def test_threads_publish_an_op_at_once():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            for _ in range(60):
                twice = custom_op(f"generated::raced_{next(NUMBERS)}", lambda x: x * 2, schema="(Tensor x) -> Tensor")
                barrier = threading.Barrier(6)

                def run(twice=twice, barrier=barrier):
                    barrier.wait()
                    return torch.func.vmap(twice)(torch.ones(3)).tolist()

                assert [[2.0, 2.0, 2.0]] * 6 == [future.result() for future in [pool.submit(run) for _ in range(6)]]
    finally:
        sys.setswitchinterval(before)
