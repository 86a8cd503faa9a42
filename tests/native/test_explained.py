"""What `show` says of native calls and nodes is what calls do."""

from __future__ import annotations

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.native.loading import describe_calls, library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)
SCHEMA = "(Tensor x, Tensor y) -> Tensor"


def product(name, schema=SCHEMA, kernel=lambda x, y: x * y, **options):
    return custom_op(f"explained::{name}", kernel, schema=schema, replace=True, **options)


def by_name():
    op = product("by_name")
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    return op


def with_meta():
    op = product("with_meta")
    op.register_backward(lambda grad, x, y, meta: (grad * y, grad * x))
    return op


def with_context():
    op = product("with_context")
    op.register_autograd(
        lambda ctx, grad: (grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


def with_tensor_on_context():
    def setup(ctx, inputs, output):
        ctx.x, ctx.y = inputs

    op = product("with_tensor_on_context")
    op.register_autograd(lambda ctx, grad: (grad * ctx.y, grad * ctx.x), setup_context=setup)
    return op


def asking_for_more():
    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_dirty()

    op = product("asking_for_more")
    op.register_autograd(lambda ctx, grad: (grad, grad), setup_context=setup)
    return op


def freeing():
    op = product("freeing")
    op.register_backward(lambda grad, x, y: (grad * y, grad * x), clear_saved=True)
    return op


def from_reference():
    op = product("from_reference")
    op.register_reference(lambda x, y: x * y)
    return op


def strict():
    op = by_name()
    op.validation = "full"
    return op


def unchecked():
    op = by_name()
    op.validation = "off"
    return op


def without_backward():
    return product("without_backward")


def maybe_an_input():
    return product("maybe_an_input", aliases={"output": "x"})


def returning_a_list():
    return product("returning_a_list", "(Tensor x, Tensor y) -> Tensor[]", lambda x, y: [x * y, x + y])


def with_dtype():
    return product(
        "with_dtype", "(Tensor x, Tensor y, ScalarType? dtype=None) -> Tensor", lambda x, y, dtype=None: x * y
    )


EXPECTED = {
    by_name: ("native", "native"),
    unchecked: ("native", "native"),
    with_context: ("native", "native"),
    with_meta: ("native", "Python: a rule asks for meta"),
    freeing: ("native", "Python: the rule frees what was saved (clear_saved=)"),
    strict: ("native", "Python: everything is checked in each call (validation)"),
    from_reference: ("native", "Python: no rule takes a gradient by name"),
    with_tensor_on_context: ("native", "Python: setup_context keeps tensors or objects as attributes of ctx"),
    asking_for_more: (
        "native",
        "Python: setup_context uses one of 'mark_dirty', 'mark_shared_storage' of ctx",
    ),
    without_backward: ("native", "Python: there is no backward"),
    maybe_an_input: (
        "Python: the output 'output' is not always a new tensor",
        "Python, since the call is",
    ),
    returning_a_list: (
        "Python: the output 'output' is not always a new tensor",
        "Python, since the call is",
    ),
    with_dtype: (
        "Python: the argument 'dtype' (ScalarType?) is of a type that they do not take",
        "Python, since the call is",
    ),
}


@each("make", EXPECTED)
def test_what_is_said_is_what_calls_do(make):
    op, x, y = make(), torch.ones(2, requires_grad=True), torch.ones(2)
    for _ in range(3):
        found = op(x, y)
    out = found if isinstance(found, Tensor) else found[0]
    said = describe_calls(op._record)
    native = op._record.road.proofs.native

    assert EXPECTED[make] == (said["call"], said["node"])
    assert (said["call"] == "native") == (native is not None and native.call.count_kinds() > 0)
    assert (said["node"] == "native") == hasattr(out.grad_fn, "_count_saved")
