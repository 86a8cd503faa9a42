"""What `show` says of native calls and nodes is what calls do."""

from __future__ import annotations

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.native.loading import describe_calls, library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


PYTHON = "Python, since the call is"


def by_name(op):
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))


def with_context(op):
    op.register_autograd(
        lambda ctx, grad: (grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


def with_tensor_on_context(op):
    def setup(ctx, inputs, output):
        ctx.x, ctx.y = inputs

    op.register_autograd(lambda ctx, grad: (grad * ctx.y, grad * ctx.x), setup_context=setup)


def asking_for_more(op):
    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_dirty()

    op.register_autograd(lambda ctx, grad: (grad, grad), setup_context=setup)


def validated(level):
    def register(op):
        by_name(op)
        op.validation = level

    return register


RULES = {
    "by name": (by_name, "native"),
    "unchecked": (validated("off"), "native"),
    "with a context": (with_context, "native"),
    "with meta": (
        lambda op: op.register_backward(lambda grad, x, y, meta: (grad * y, grad * x)),
        "Python: a rule asks for meta",
    ),
    "freeing": (
        lambda op: op.register_backward(lambda grad, x, y: (grad * y, grad * x), clear_saved=True),
        "Python: the rule frees what was saved (clear_saved=)",
    ),
    "strict": (validated("full"), "Python: everything is checked in each call (validation)"),
    "from the reference": (
        lambda op: op.register_reference(lambda x, y: x * y),
        "Python: no rule takes a gradient by name",
    ),
    "with a tensor on the context": (
        with_tensor_on_context,
        "Python: setup_context keeps tensors or objects as attributes of ctx",
    ),
    "asking for more": (
        asking_for_more,
        "Python: setup_context uses one of 'mark_dirty', 'mark_shared_storage' of ctx",
    ),
    "without a backward": (lambda op: None, "Python: there is no backward"),
}
NOT_NEW = "Python: the output 'output' is not always a new tensor"
CALLS = {
    "maybe an input": ({"aliases": {"output": "x"}}, NOT_NEW),
    "returning a list": (
        {"schema": "(Tensor x, Tensor y) -> Tensor[]", "kernel": lambda x, y: [x * y, x + y]},
        NOT_NEW,
    ),
    "with a dtype": (
        {
            "schema": "(Tensor x, Tensor y, ScalarType? dtype=None) -> Tensor",
            "kernel": lambda x, y, dtype=None: x * y,
        },
        "Python: the argument 'dtype' (ScalarType?) is of a type that they do not take",
    ),
}
ROWS = {name: ({}, register, ("native", node)) for name, (register, node) in RULES.items()}
ROWS |= {name: (options, lambda op: None, (call, PYTHON)) for name, (options, call) in CALLS.items()}


def declare(schema="(Tensor x, Tensor y) -> Tensor", kernel=lambda x, y: x * y, **options):
    return custom_op("explained::op", kernel, schema=schema, replace=True, **options)


@each(("options", "register", "expected"), ROWS.values(), ids=ROWS)
def test_what_is_said_is_what_calls_do(options, register, expected):
    op, x, y = declare(**options), torch.ones(2, requires_grad=True), torch.ones(2)
    register(op)
    for _ in range(3):
        found = op(x, y)
    out = found if isinstance(found, Tensor) else found[0]
    said = describe_calls(op._record)
    native = op._record.road.native

    assert expected == (said["call"], said["node"])
    assert (said["call"] == "native") == (native is not None and native.call.count_kinds() > 0)
    assert (said["node"] == "native") == hasattr(out.grad_fn, "_count_saved")
