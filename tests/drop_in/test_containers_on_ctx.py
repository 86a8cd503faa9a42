"""Lists and dicts that a setup_context keeps as attributes of ctx reach the backward as they are."""

import itertools

import pytest
import torch
from tables import each

from custom_autograd import custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler", "both_calls")

NUMBERS = itertools.count()
DECLARED = {"ours": custom_op, "torch.library": torch.library.custom_op}


def doubled(declare, setup_context, backward, schema="(Tensor x) -> Tensor"):
    op = declare(f"containers_on_ctx::op{next(NUMBERS)}", lambda x, *_: x * 2, mutates_args=(), schema=schema)
    op.register_fake(lambda x, *_: torch.empty_like(x))
    op.register_autograd(backward, setup_context=setup_context)
    return op


def gradients(op, *others, retained=1):
    """Return the gradient of each of three calls: the first is proven, and what it kept decides on the others."""
    found = []
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        result = op(x, *others).sum()
        for _ in range(retained):
            (gradient,) = torch.autograd.grad(result, x, retain_graph=True)
        found.append(gradient.tolist())
    return found


def read(ctx, grad):
    return grad * (2 + len(ctx.kept))


@each("declare", DECLARED)
@each("kept", {"list": [], "dict": {}, "tuple": (), "nested": [[], {}]})
def test_an_empty_container_that_is_all_that_was_kept_is_not_lost(declare, kept):
    def setup_context(ctx, inputs, output):
        ctx.kept = kept

    op = doubled(DECLARED[declare], setup_context, read)

    assert [[2.0 + len(kept)] * 2] * 3 == gradients(op)


@each("declare", DECLARED)
def test_shapes_of_a_list_without_tensors_are_kept(declare):
    def setup_context(ctx, inputs, output):
        ctx.kept = [one.shape for one in inputs[1]]

    op = doubled(
        DECLARED[declare],
        setup_context,
        lambda ctx, grad: (read(ctx, grad), [None] * len(ctx.kept)),
        "(Tensor x, Tensor[] others) -> Tensor",
    )

    assert [[2.0, 2.0]] * 3 == gradients(op, [])
    assert [[3.0, 3.0]] * 3 == gradients(op, [torch.ones(1)])


def with_tensor(ctx, inputs):
    ctx.factors = [inputs[0], {}]


def without_tensor(ctx, inputs):
    ctx.factors = [1.0, {}]


@each("declare", DECLARED)
@each("more", [with_tensor, without_tensor])
def test_what_a_backward_writes_to_a_container_on_ctx_is_seen_outside(declare, more):
    log, options = [], {"scale": 2.0}

    def setup_context(ctx, inputs, output):
        ctx.log, ctx.options = log, options
        more(ctx, inputs)

    def backward(ctx, grad):
        ctx.log.append(tuple(grad.shape))
        ctx.options["seen"] = True
        return grad * ctx.options["scale"] * ctx.factors[0]

    op = doubled(DECLARED[declare], setup_context, backward)

    assert [[2.0, 2.0]] * 3 == gradients(op, retained=2)
    assert [(2,)] * 6 == log
    assert {"scale": 2.0, "seen": True} == options


def test_what_a_backward_writes_to_a_container_is_seen_outside_of_transforms():
    log = []

    def setup_context(ctx, inputs, output):
        ctx.log = log

    def backward(ctx, grad):
        ctx.log.append(1)
        return grad * 2

    op = doubled(custom_op, setup_context, backward)
    torch.func.grad(lambda x: op(x).sum())(torch.ones(2))

    assert [1] == log


@each("declare", DECLARED)
def test_containers_reach_the_backward_of_compiled_code(declare):
    def setup_context(ctx, inputs, output):
        ctx.kept = {"sizes": list(inputs[0].shape), "none": []}
        ctx.save_for_backward(*inputs)

    op = doubled(DECLARED[declare], setup_context, read)
    compiled = torch.compile(lambda x: op(x), backend="aot_eager", fullgraph=True)

    assert [[4.0, 4.0]] * 3 == gradients(compiled)
    with torch._dynamo.config.patch(compiled_autograd=True):
        x = torch.ones(2, requires_grad=True)
        torch.compile(lambda: op(x).sum().backward(), backend="aot_eager")()
    assert [4.0, 4.0] == x.grad.tolist()
