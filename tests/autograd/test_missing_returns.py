"""A rule without a `return` raises, however it is written and called; an explicit None is a zero."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import GradientError, custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@custom_op("returning::double")
def double(x: Tensor) -> Tensor:
    return x * 2


@custom_op("returning::first")
def first(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y


@custom_op("returning::listed")
def listed(xs: list[Tensor]) -> Tensor:
    return xs[0] * 2


@custom_op("returning::contained")
def contained(xs: dict[str, Tensor]) -> Tensor:
    return xs["x"] * 2


for op in (double, first):
    op.register_fake(lambda x, *_: torch.empty_like(x))
listed.register_fake(lambda xs: torch.empty_like(xs[0]))
contained.register_fake(lambda xs: torch.empty_like(xs["x"]))


def nothing(grad):
    grad * 2


def register_first(rule):
    first.register_grad("x", replace=True)(rule)
    first.register_grad("y", replace=True)(lambda grad: grad)


RULES = {
    "one input": (double, lambda rule: double.register_backward(rule, replace=True)),
    "one of two": (lambda x: first(x, x.detach()), register_first),
    "callable": (
        lambda x: first(x, x.detach()),
        lambda rule: first.register_backward(lambda grad: {"x": lambda: rule(grad), "y": grad}, replace=True),
    ),
    "list": (lambda x: listed([x, x.detach()]), lambda rule: listed.register_backward(rule, replace=True)),
    "callable in a list": (
        lambda x: listed([x, x.detach()]),
        lambda rule: listed.register_backward(lambda grad: [lambda: rule(grad), None], replace=True),
    ),
    "container": (lambda x: contained({"x": x}), lambda rule: contained.register_backward(rule, replace=True)),
}
ZEROS = {
    "one input": {"x": None},
    "one of two": {"x": None},
    "list": {"xs": None},
    "container": {"xs": None},
}


def eager(f):
    leaf = torch.ones(3, requires_grad=True)
    for _ in range(3):  # the first calls may take another way than those that follow
        f(leaf).sum().backward()
    return torch.zeros(3) if leaf.grad is None else leaf.grad


WAYS = {
    "eager": eager,
    "func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(3)),
    "vmap of func.grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(torch.ones(1, 3))[0],
    "compiled": lambda f: eager(torch.compile(f, fullgraph=True, backend="aot_eager")),
}


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS)
@each("rule", RULES)
def test_a_backward_without_a_return_raises(way, rule):
    function, register = RULES[rule]
    register(nothing)

    with pytest.raises((GradientError, RuntimeError), match=r"is a return missing\?"):
        WAYS[way](function)


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS)
@each("rule", ZEROS)
def test_an_explicit_none_is_zero(way, rule):
    function, register = RULES[rule]
    register(lambda grad: ZEROS[rule])

    assert [0.0, 0.0, 0.0] == WAYS[way](function).tolist()


def test_a_drop_in_backward_may_return_none_as_in_torch():
    op = custom_op("returning::drop_in", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    op.register_autograd(lambda ctx, grad: None)

    assert [0.0, 0.0, 0.0] == eager(op).tolist()


@pytest.mark.parametrize("op", [double, lambda x: contained({"x": x})], ids=["plain", "container"])
def test_a_jvp_without_a_return_raises(op):
    double.register_jvp(lambda tangent_x: None, replace=True)
    contained.register_jvp(lambda tangent_xs: None, replace=True)

    with pytest.raises(GradientError, match=r"is a return missing\?"):
        torch.func.jvp(op, (torch.ones(3),), (torch.ones(3),))


@custom_op("returning::dropped")
def dropped(x: Tensor) -> Tensor:
    return x * 2


@custom_op("returning::dropped_two")
def dropped_two(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def forgotten(ctx, grad):
    grad * 2


def bare(ctx, grad):
    if ctx is not None:
        return


def explicit(ctx, grad):
    return None


@each("rule", [forgotten, bare])
@each("op", [dropped, lambda x: dropped_two(x, x)], ids=["one input", "two inputs"])
def test_a_backward_with_a_ctx_and_without_a_return_raises(op, rule, both_calls):
    for one in (dropped, dropped_two):
        one.register_autograd(rule, replace=True)
    x = torch.ones(3, requires_grad=True)
    for call in (lambda: op(x).sum().backward(), lambda: torch.func.grad(lambda x: op(x).sum())(x.detach())):
        with pytest.raises(GradientError, match="is a return missing"):
            call()


def test_a_backward_with_a_ctx_may_say_that_the_gradient_is_zero(both_calls):
    dropped.register_autograd(explicit, replace=True)
    x = torch.ones(3, requires_grad=True)

    assert (None,) == torch.autograd.grad(dropped(x).sum(), x, allow_unused=True)
