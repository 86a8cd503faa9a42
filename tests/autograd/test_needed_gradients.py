"""A backward of some inputs only computes their gradients and no others: `grad(y, x)`, `backward(inputs=...)`."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tables import each
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from custom_autograd import custom_op, through_dispatcher
from custom_autograd.native.native_calls import NativeCalls
from custom_autograd.torch_private.definitions import changes
from custom_autograd.torch_private.functions import has_function

pytestmark = pytest.mark.usefixtures("fresh_compiler")

LOSES_NODES = torch.__version__.startswith(("2.11.", "2.12."))
COMPUTED: list[str] = []
"""The inputs whose gradients the rules have computed."""


def linear(name):
    op = custom_op(f"needed::{name}", multiplied)
    op.register_fake(lambda x, weight: x.new_empty(x.shape[0], weight.shape[0]))
    return op


def multiplied(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


def grad_of_x(grad, weight):
    COMPUTED.append("x")
    return grad @ weight


def grad_of_weight(grad, x):
    COMPUTED.append("weight")
    return grad.T @ x


in_dict = linear("in_dict")
in_dict.register_backward(
    lambda grad, x, weight: {"x": lambda: grad_of_x(grad, weight), "weight": lambda: grad_of_weight(grad, x)}
)
one_by_one = linear("one_by_one")
one_by_one.register_grad("x")(grad_of_x)
one_by_one.register_grad("weight")(grad_of_weight)
asked = linear("asked")
drop_in = linear("drop_in")
with_attributes = linear("with_attributes")
positional = linear("positional")


@asked.register_backward
def _(grad, x, weight, needs):
    return {
        "x": grad_of_x(grad, weight) if needs.x else None,
        "weight": grad_of_weight(grad, x) if needs.weight else None,
    }


@positional.register_backward
def _(grad, x, weight):
    return (lambda: grad_of_x(grad, weight)), (lambda: grad_of_weight(grad, x))


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def keep(ctx, inputs, output):
    ctx.x, ctx.weight = inputs


def by_context(ctx, grad):
    x, weight = ctx.saved_tensors or (ctx.x, ctx.weight)
    return (
        grad_of_x(grad, weight) if ctx.needs_input_grad[0] else None,
        grad_of_weight(grad, x) if ctx.needs_input_grad[1] else None,
    )


drop_in.register_autograd(by_context, setup_context=save)
with_attributes.register_autograd(by_context, setup_context=keep)


@custom_op("needed::in_lists")
def in_lists(x: Tensor, weights: list[Tensor]) -> Tensor:
    return x @ weights[0].T


@in_lists.register_backward
def _(grad, x, weights, needs):
    return {
        "x": lambda: grad_of_x(grad, weights[0]),
        "weights": [grad_of_weight(grad, x) if need else None for need in needs.weights],
    }


in_lists.register_fake(lambda x, weights: x.new_empty(x.shape[0], weights[0].shape[0]))

RULES = {
    "callables in a dict": in_dict,
    "callables in a tuple": positional,
    "a rule for each input": one_by_one,
    "needs": asked,
    "register_autograd": drop_in,
    "attributes of ctx": with_attributes,
    "lists": lambda x, weight: in_lists(x, [weight]),
}


EVERY_RULE = each("op", RULES.values(), ids=RULES)


@pytest.fixture(params=["native", "python", "dispatcher"], autouse=True)
def way_of_calling(request, monkeypatch):
    """Through which code the op is called."""
    COMPUTED.clear()
    monkeypatch.setattr(NativeCalls, "are_learnt", request.param == "native")
    changes.note()  # forget what has been learnt
    with through_dispatcher() if request.param == "dispatcher" else contextlib.nullcontext():
        yield
    changes.note()


def values(seed=0):
    make = torch.Generator().manual_seed(seed)
    shapes = ((3, 4), (5, 4), (2, 5))
    return [torch.randn(*shape, dtype=torch.float64, generator=make).requires_grad_() for shape in shapes]


def warmed(op):
    """The op, when direct calls of it are known."""
    for _ in range(4):
        x, first, second = values()
        op(op(x, first), second).sum().backward()
    COMPUTED.clear()
    return op


def expected_gradients():
    x, first, second = values()
    return torch.autograd.grad(multiplied(multiplied(x, first), second).sum(), [x, first, second])


@EVERY_RULE
def test_grad_of_an_input_computes_no_gradients_of_weights(op):
    x, first, second = values()
    found = torch.autograd.grad(warmed(op)(op(x, first), second).sum(), x)

    assert ["x", "x"] == COMPUTED
    torch.testing.assert_close(expected_gradients()[:1], found)


@EVERY_RULE
def test_backward_of_one_weight_computes_that_gradient_alone(op):
    x, first, second = values()
    y = warmed(op)(op(x, first), second).sum()
    y.backward(inputs=[second], retain_graph=True)

    assert ["weight"] == COMPUTED
    y.backward(inputs=[first])
    assert ["weight", "x", "weight"] == COMPUTED
    assert x.grad is None
    torch.testing.assert_close(expected_gradients()[1:], (first.grad, second.grad))


@EVERY_RULE
def test_a_plain_backward_computes_all(op):
    x, first, second = values()
    warmed(op)(op(x, first), second).sum().backward()

    assert ["weight", "weight", "x", "x"] == sorted(COMPUTED)
    torch.testing.assert_close(expected_gradients(), (x.grad, first.grad, second.grad))


@EVERY_RULE
def test_a_pipeline_stage_computes_each_gradient_once(op):
    """Zero-bubble schedules compute gradients of inputs first, those of weights later."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    x, first, second = values()
    y = warmed(op)(op(x, first), second)
    if LOSES_NODES and has_function(y.grad_fn):
        return  # torch up to 2.12 loses the nodes of autograd.Functions between the passes of a stage
    y = y.sum()
    (found,), groups = stage_backward_input([y], None, [x], iter([first, second]))

    assert ["x", "x"] == COMPUTED
    stage_backward_weight(iter([first, second]), groups)
    assert ["x", "x", "weight", "weight"] == COMPUTED
    torch.testing.assert_close(expected_gradients(), (found, first.grad, second.grad))


@EVERY_RULE
def test_inputs_that_are_no_leaves(op):
    x, first, second = values()
    middle = warmed(op)(x, first)
    found = torch.autograd.grad(op(middle, second * 1).sum(), middle)

    assert ["x"] == COMPUTED
    torch.testing.assert_close((torch.ones(3, 2, dtype=torch.float64) @ second,), found)


@EVERY_RULE
def test_checkpointed(op):
    x, first, second = values()
    y = checkpoint(lambda x: warmed(op)(op(x, first), second), x, use_reentrant=False)
    found = torch.autograd.grad(y.sum(), x)

    assert ["x", "x"] == COMPUTED
    torch.testing.assert_close(expected_gradients()[:1], found)


@EVERY_RULE
def test_hooks_see_what_is_computed(op):
    x, first, second = values()
    seen = []
    y = warmed(op)(op(x, first), second)
    y.grad_fn.register_hook(lambda grads, _: seen.append([grad is not None for grad in grads]))
    torch.autograd.grad(y.sum(), x)

    assert [[True, False]] == [row[-2:] for row in seen]


@EVERY_RULE
def test_second_derivatives(op):
    """What a rule calls while a gradient of some inputs is computed is recorded with all its gradients."""
    x, first, second = values()
    (grad,) = torch.autograd.grad((warmed(op)(op(x, first), second) ** 2).sum(), x, create_graph=True)
    found = torch.autograd.grad((grad**2).sum(), [x, first, second])

    x, first, second = values()
    (grad,) = torch.autograd.grad((multiplied(multiplied(x, first), second) ** 2).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad((grad**2).sum(), [x, first, second]), found)


@EVERY_RULE
def test_transforms(op):
    COMPUTED.clear()
    x, first, second = values()
    found = torch.func.grad(lambda x: op(op(x, first), second).sum())(x)

    assert ["x", "x"] == COMPUTED
    torch.testing.assert_close(expected_gradients()[0], found)


@EVERY_RULE
def test_compiled_autograd(op):
    x, first, second = values()
    y = warmed(op)(op(x, first), second).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        found = torch.autograd.grad(y, [x])

    torch.testing.assert_close(expected_gradients()[:1], found)


def test_a_rule_may_call_ops_that_are_recorded_in_full():
    """Their nodes are not of the backward in progress."""
    x, first, _ = values()

    @custom_op("needed::outer", replace=True)
    def outer(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T

    @outer.register_backward
    def _(grad, x, weight, needs):
        with torch.enable_grad():
            leaf, its_weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            inner = torch.autograd.grad((drop_in(leaf, its_weight) * grad).sum(), [leaf, its_weight])
        return inner if needs.weight else (inner[0], None)

    found = torch.autograd.grad(outer(x, first).sum(), x)

    torch.testing.assert_close((torch.ones(3, 5, dtype=torch.float64) @ first,), found)


def test_a_write_to_a_view():
    """The engine runs another node, which runs the op's."""

    @custom_op("needed::add_", mutates_args="total", replace=True)
    def add_(total: Tensor, x: Tensor) -> None:
        total.add_(x)

    add_.register_backward(lambda grad: {"total": grad, "x": grad})
    (total, *_), (x, *_) = values(), values(1)
    whole = total * 1
    add_(whole[1:], x[1:])
    found = torch.autograd.grad((whole * whole).sum(), [total, x])

    whole = total * 1
    whole[1:] += x[1:]
    torch.testing.assert_close(torch.autograd.grad((whole * whole).sum(), [total, x]), found)


def test_needs_input_grad_of_ctx_is_restored():
    x, first, second = values()
    y = warmed(drop_in)(drop_in(x, first), second).sum()
    torch.autograd.grad(y, x, retain_graph=True)
    COMPUTED.clear()
    y.backward()

    assert ["weight", "weight", "x", "x"] == sorted(COMPUTED)


@custom_op("needed::by_reference", reference=True)
def by_reference(x: Tensor, weight: Tensor, k: float = 2.0) -> Tensor:
    return x * weight * k


@custom_op("needed::of_list", reference=True)
def of_list(values: list[Tensor], mask: Tensor, k: float = 2.0, weight: Tensor | None = None) -> Tensor:
    return values[0] * values[1] * mask * k


@pytest.mark.parametrize("ways", [contextlib.nullcontext, through_dispatcher], ids=["call", "dispatcher"])
def test_a_view_made_under_no_grad_is_a_constant(ways, both_calls):
    """It says that it requires a gradient, and has no place in the graph."""
    x, leaf = (torch.full((3,), number, requires_grad=True) for number in (2.0, 3.0))
    mask = torch.ones(3, dtype=torch.int64)
    with torch.no_grad():
        view = leaf.view(3)
    assert view.requires_grad
    with ways():
        for call in (
            lambda: by_reference(x, view),
            lambda: by_reference(view, x),
            lambda: of_list([x, view], mask),
            lambda: of_list([view, x], mask, weight=leaf),
            lambda: in_dict(view.diag(), x.diag()).diag() * 2,
        ):
            (alone,) = torch.autograd.grad(call().sum(), x)
            call().sum().backward()

            assert alone.tolist() == x.grad.tolist() == [6.0] * 3
            assert leaf.grad is None
            x.grad = None
