"""A rule's parameter with a default of None is None where no gradient arrives; any other is filled with zeros."""

from __future__ import annotations

import pytest
import torch
from tables import each
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from custom_autograd import custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")

SEEN: list[object] = []


@custom_op("absent::hidden", outputs=("out", "square"), hidden=("square",))
def hidden(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x * x, x * x


@hidden.register_backward
def _(grad_out, x, grad_square=None):
    SEEN.append(grad_square)
    grad = 3 * grad_out * x * x
    return grad if grad_square is None else grad + 2 * grad_square * x


@custom_op("absent::saved", outputs=("out", "square"), hidden=("square",))
def saved(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x * x, x * x


@saved.register_backward
def _(grad_out, square, x, grad_square=None):
    SEEN.append(grad_square)
    grad = 3 * grad_out * square
    return grad if grad_square is None else grad + 2 * grad_square * x


@custom_op("absent::visible", outputs=("out", "square"))
def visible(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x * x, x * x


@visible.register_backward
def _(grad_out, x, grad_square=None):
    SEEN.append(grad_square)
    grad = 3 * grad_out * x * x
    return grad if grad_square is None else grad + 2 * grad_square * x


@custom_op("absent::once", outputs=("out", "square"))
def once(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x * x, x * x


@once.register_backward(once_differentiable=True)
def _(grad_out, x, grad_square=None):
    SEEN.append(grad_square)
    return 3 * grad_out * x * x


@custom_op("absent::listed", outputs=("out", "parts"))
def listed(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x * x * x, [x * x, x * 2]


@listed.register_backward
def _(grad_out, x, grad_parts=None):
    SEEN.append(grad_parts)
    return 3 * grad_out * x * x


@custom_op("absent::contained", outputs=("out", "parts"))
def contained(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    return x * x * x, (x * x, x * 2)


@contained.register_backward
def _(grad_out, x, grad_parts=None):
    SEEN.append(grad_parts)
    return 3 * grad_out * x * x


@custom_op("absent::writing_", mutates_args=("x",), outputs=("out",))
def writing_(x: Tensor) -> Tensor:
    out = x * x * x
    x.mul_(2)
    return out


@writing_.register_backward
def _(grad_out, out, grad_x=None):
    SEEN.append(grad_x)
    return 3 * grad_out * out.pow(2 / 3)


for op in (hidden, saved, visible, once):
    op.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
listed.register_fake(lambda x: (torch.empty_like(x), [torch.empty_like(x), torch.empty_like(x)]))
contained.register_fake(lambda x: (torch.empty_like(x), (torch.empty_like(x), torch.empty_like(x))))
writing_.register_fake(torch.empty_like)


def cube_of_writing(x):
    return writing_(x * 1)


CUBES = {
    "hidden": hidden,
    "hidden and saved": saved,
    "visible": lambda x: visible(x)[0],
    "once differentiable": lambda x: once(x)[0],
    "list": lambda x: listed(x)[0],
    "container": lambda x: contained(x)[0],
    "written": cube_of_writing,
}


def eager(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf).sum(), leaf)[0]


WAYS = {
    "eager": eager,
    "func.grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "func.vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(x))[0],
    "vmap of func.grad": lambda f, x: torch.vmap(torch.func.grad(f))(x),
    "checkpoint": lambda f, x: eager(lambda x: checkpoint(f, x, use_reentrant=False), x),
    "compiled": lambda f, x: eager(torch.compile(f, fullgraph=True, backend="aot_eager"), x),
}


def tensor():
    return torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)


def calls_of(way):
    """How often a way is tried: the second call and those after it may go another way, but a graph is a new one."""
    return range(1 if way in ("compiled", "compiled autograd") else 3)


@each("way", WAYS)
@each("cube", CUBES)
def test_a_gradient_that_does_not_arrive_is_none(way, cube):
    SEEN.clear()
    for _ in calls_of(way):
        found = WAYS[way](CUBES[cube], tensor())

        torch.testing.assert_close(found, 3 * tensor() ** 2)
    assert SEEN
    assert {None} == set(SEEN)


def test_a_gradient_of_a_hidden_output_arrives_in_a_second_backward():
    x = tensor().requires_grad_()
    for _ in range(2):
        SEEN.clear()
        (first,) = torch.autograd.grad(saved(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)

        torch.testing.assert_close(second, 6 * tensor())
        assert [True, False] == [one is None for one in SEEN]


def test_a_list_that_arrives_in_part_is_filled_with_zeros():
    x = tensor().requires_grad_()
    for _ in range(2):
        SEEN.clear()
        out, (first, _) = listed(x)
        torch.autograd.grad(out.sum() + first.sum(), x)

        assert [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]] == [one.tolist() for one in SEEN[0]]


def test_a_container_that_arrives_in_part_has_none_in_the_other_places():
    x = tensor().requires_grad_()
    for _ in range(2):
        SEEN.clear()
        out, (first, _) = contained(x)
        torch.autograd.grad(out.sum() + first.sum(), x)

        assert [1.0, 1.0, 1.0] == SEEN[0][0].tolist()
        assert SEEN[0][1] is None


def test_a_gradient_without_a_default_is_filled_with_zeros():
    op = custom_op(
        "absent::filled", lambda x: (x * 2, x.new_ones(2, 3)), schema="(Tensor x) -> (Tensor out, Tensor other)"
    )

    @op.register_backward
    def _(grad_out, grad_other):
        SEEN.append(grad_other)
        return grad_out * 2

    x = tensor().requires_grad_()
    for way in (eager, WAYS["func.grad"]):
        SEEN.clear()
        for _ in range(2):
            way(lambda x: op(x)[0], x.detach())

        assert [torch.zeros(2, 3).tolist()] * 2 == [one.tolist() for one in SEEN]
        assert {torch.float64} == {one.dtype for one in SEEN}


def see(grad_out, grad_index):
    SEEN.append(grad_index[0] if isinstance(grad_index, list) else grad_index)
    return grad_out * 2


INTEGERS = {
    "plain": lambda grad_out, grad_index: see(grad_out, grad_index),
    "with the output": lambda grad_out, grad_index, index: see(grad_out, grad_index),
    "with meta": lambda grad_out, grad_index, meta: see(grad_out, grad_index),
}


def batched(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, torch.ones(1, 3, dtype=x.dtype), is_grads_batched=True)[0][0]


def compiled_autograd(f, x):
    leaf = x.clone().requires_grad_()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        f(leaf).sum().backward()
    return leaf.grad


WAYS_TO_INTEGERS = {**WAYS, "batched": batched, "compiled autograd": compiled_autograd}


def with_integers(x):
    return x * 2, torch.zeros(*x.shape, 2, dtype=torch.int32)


def with_listed_integers(x):
    return x * 2, [torch.zeros(*x.shape, 2, dtype=torch.int32)]


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS_TO_INTEGERS)
@each(("kernel", "result"), [(with_integers, "Tensor"), (with_listed_integers, "Tensor[]")], ids=["tensor", "list"])
@each("rule", INTEGERS)
def test_the_gradient_of_an_integer_output_is_zeros_of_its_shape_and_dtype(rule, kernel, result, way):
    op = custom_op("absent::integer", kernel, schema=f"(Tensor x) -> (Tensor out, {result} index)", replace=True)
    op.register_fake(kernel)
    op.register_backward(INTEGERS[rule])
    SEEN.clear()
    for _ in calls_of(way):
        found = WAYS_TO_INTEGERS[way](lambda x: op(x)[0], tensor())

        assert [2.0, 2.0, 2.0] == found.tolist()
    shape = (2,) if way == "vmap of func.grad" else (3, 2)
    assert SEEN
    assert {(shape, torch.int32)} == {(tuple(one.shape), one.dtype) for one in SEEN}
