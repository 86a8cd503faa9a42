"""A replaced op keeps running in old handles; a refused replacement changes nothing."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op


def declare(name, factor, **options):
    @custom_op(f"replacing::{name}", **options)
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * factor)

    @op.register_fake
    def _(x):
        return torch.empty_like(x)

    @op.register_backward
    def _(grad):
        return grad * factor

    return op


def value(call):
    return call(torch.ones(1)).item()


def gradient(call):
    x = torch.ones(1, requires_grad=True)
    call(x).backward()
    return x.grad.item()


def functional_gradient(call):
    return torch.func.grad(lambda x: call(x).sum())(torch.ones(1)).item()


def compiled_gradient(call):
    return gradient(torch.compile(call, backend="aot_eager", fullgraph=True))


ASKED = [value, gradient, functional_gradient]


@pytest.mark.parametrize("asked", [*ASKED, compiled_gradient])
def test_old_and_new_handle_have_their_own_implementation(asked):
    old = declare("twice", 2.0, replace=True)
    new = declare("twice", 3.0, replace=True)
    newest = declare("twice", 4.0, replace=True)

    assert [2.0, 3.0, 4.0] == [asked(op) for op in (old, new, newest)]


@pytest.mark.parametrize("asked", ASKED)
def test_torch_ops_has_the_newest(asked):
    declare("by_name", 2.0, replace=True)
    declare("by_name", 3.0, replace=True)

    assert 3.0 == asked(torch.ops.replacing.by_name)
    assert 3.0 == asked(torch.ops.replacing.by_name.default)


def test_a_graph_recorded_before_the_replacement_is_differentiated_as_it_was():
    old = declare("recorded", 2.0)
    x = torch.ones(1, requires_grad=True)
    y = old(x)
    declare("recorded", 3.0, replace=True)
    y.backward()

    assert 2.0 == x.grad.item()


def test_rules_registered_with_an_old_handle_are_the_old_ones():
    old = declare("registered_late", 2.0)
    new = declare("registered_late", 3.0, replace=True)
    old.register_backward(lambda grad: grad * 20, replace=True)

    assert [20.0, 3.0] == [gradient(old), gradient(new)]


def test_the_new_one_does_not_inherit_rules():
    old = declare("bare", 2.0)
    new = custom_op("replacing::bare", lambda x: x + 1, schema="(Tensor x) -> Tensor", replace=True)

    assert [2.0, 2.0] == [value(old), value(new)]
    assert "missing: register_backward" == new.capabilities()["backward"]


def test_the_new_one_may_have_another_schema():
    old = declare("reshaped", 2.0)
    new = custom_op("replacing::reshaped", lambda x, y: x + y, schema="(Tensor x, Tensor y) -> Tensor", replace=True)

    assert 2.0 == value(old)
    assert 2.0 == new(torch.ones(1), torch.ones(1)).item()
    assert 2.0 == torch.ops.replacing.reshaped(torch.ones(1), torch.ones(1)).item()


def test_an_old_handle_survives_garbage_collection_of_everything_else():
    old = declare("collected", 2.0)
    declare("collected", 3.0, replace=True)
    gc.collect()

    assert 2.0 == gradient(old)


def test_threads_may_declare_and_replace_at_once():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # at every step: without the locks, two of three runs fail
    try:
        with ThreadPoolExecutor(4) as threads:
            ops = list(threads.map(lambda number: declare("threads", float(number), replace=True), range(24)))
    finally:
        sys.setswitchinterval(before)

    assert [float(number) for number in range(24)] == [gradient(op) for op in ops]
    assert gradient(torch.ops.replacing.threads) in range(24)


@pytest.mark.parametrize("default", [torch.contiguous_format, torch.float16, torch.strided])
def test_defaults_that_a_schema_can_hold_come_back(default):
    seen = []

    def function(x, d=default):
        seen.append(d)
        return x * 1

    function.__annotations__ = {"x": Tensor, "d": type(default), "return": Tensor}
    op = custom_op("replacing::default", function, replace=True)
    op(torch.ones(1))
    torch.ops.replacing.default(torch.ones(1))

    assert [default, default] == seen


def test_replacing_what_is_not_there_is_declaring():
    assert 2.0 == value(declare("fresh", 2.0, replace=True))
