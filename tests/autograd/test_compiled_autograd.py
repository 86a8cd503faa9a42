"""Compiled autograd compiles the backward of an op once, whichever way its calls go: the same as that of a built-in."""

import contextlib

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op, through_dispatcher
from custom_autograd.native.native_calls import NativeCalls
from custom_autograd.torch_private.definitions import changes
from custom_autograd.torch_private.verification import GraphCounter

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def squared(x: Tensor) -> Tensor:
    return x * x


def by_name():
    op = custom_op("compiled_autograd::by_name", squared, replace=True)
    op.register_backward(lambda grad, x: 2 * grad * x)
    return op


def by_overload():
    return by_name().overload


def with_context():
    op = custom_op("compiled_autograd::with_context", squared, replace=True)
    op.register_autograd(
        lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


def with_a_list():
    op = custom_op(
        "compiled_autograd::listed", lambda xs: xs[0] * xs[0], schema="(Tensor[] xs) -> Tensor", replace=True
    )
    op.register_backward(lambda grad, xs: {"xs": [2 * grad * xs[0]]})
    return lambda x: op([x])


OPS = {
    "by name": by_name,
    "its overload": by_overload,
    "register_autograd": with_context,
    "a list": with_a_list,
    "a built-in": lambda: torch.square,
}


@pytest.fixture(scope="module", autouse=True)
def dynamo_is_loaded():
    """Compile once in this process: that loads Dynamo, which registers ops, so that direct calls are learnt anew.

    A call that learns records a node of Python, and one after it a native one: the first op that is compiled in a
    process may be compiled twice.
    """
    graphs_after_each_backward(torch.square, 2)


@pytest.fixture(params=["native", "python", "dispatcher"], autouse=True)
def way(request, monkeypatch):
    """Through which code the op is called."""
    monkeypatch.setattr(NativeCalls, "are_learnt", request.param == "native")
    changes.note()  # forget what has been learnt
    with through_dispatcher() if request.param == "dispatcher" else contextlib.nullcontext():
        yield request.param
    changes.note()


def graphs_after_each_backward(op, passes):
    """How many graphs have been compiled after each pass, and the gradients."""
    counter, counts, gradients = GraphCounter(), [], []
    for _ in range(passes):
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = op(x).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=counter)):
            y.backward()
        counts.append(counter.graphs)
        gradients.append(x.grad.tolist())
    return counts, gradients


@each("warm_calls", [0, 1, 5])
@each("make", OPS.values(), ids=OPS)
def test_the_backward_of_an_op_is_compiled_once(make, warm_calls, way):
    if warm_calls and (way == "dispatcher" or make is OPS["a built-in"]):
        return  # nothing is learnt from a call
    op = make()
    for _ in range(warm_calls):
        op(torch.ones(3, requires_grad=True)).sum().backward()

    counts, gradients = graphs_after_each_backward(op, 5)

    assert [counts[0]] * 5 == counts
    assert [[2.0, 4.0, 6.0]] * 5 == gradients


def test_a_new_rule_is_compiled_again():
    op = by_name()
    graphs_after_each_backward(op, 2)
    op.register_backward(lambda grad, x: 3 * grad * x, replace=True)

    _, gradients = graphs_after_each_backward(op, 2)

    assert [[3.0, 6.0, 9.0]] * 2 == gradients
