"""Kernels and rules see instances as the caller made them: their class, their values, and nothing made anew."""

import enum
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

import pytest
import torch
from containers import Affine, Polynomial
from tables import each
from torch import Tensor
from ways import Calls

from custom_autograd import DeclarationError, GradientError, KernelError, RegistrationError, custom_op

X = torch.ones(2)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Word(str, enum.Enum):
    LEFT = "left"


@dataclass
class Scaled:
    value: Tensor
    factor: InitVar[float] = 2.0

    def __post_init__(self, factor):
        self.value = self.value * factor


@dataclass(init=False)
class Doubled:
    value: Tensor

    def __init__(self, value):
        self.value = value * 2


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Base(NamedTuple):
    value: Tensor


class Twice(Pair):
    def __new__(cls, left):
        return Pair.__new__(cls, left, left * 2)


@dataclass
class Small:
    value: Tensor


@dataclass
class Large(Small):
    more: float = 3.0


@custom_op("instances::scaled", reference=True)
def scaled(x: Tensor, one: Scaled, some: list[Scaled], other: Doubled) -> Scaled:
    y = x * one.value * some[0].value * other.value
    return Scaled(y, 1.0)


@custom_op("instances::twice", reference=True)
def twice(x: Tensor, p: Twice) -> Tensor:
    return x * p.left * p.right


@custom_op("instances::either", reference=True)
def either(x: Tensor, p: Small | Large) -> Tensor:
    return x * p.value * (p.more if isinstance(p, Large) else 1)


@custom_op("instances::shown", reference=True)
def shown(x: Tensor, table: dict[str, Any]) -> Tensor:
    SEEN.append(table)
    return x.clone()


@custom_op("instances::several", reference=True)
def several(x: Tensor, values: list[int] | list[Tensor]) -> Tensor:
    return x * values[0]


@custom_op("instances::grown", reference=True)
def grown(x: Tensor, n: list[int] = [1]) -> Tensor:  # noqa: B006 - what is under test
    n.append(1)
    return x * len(n)


SEEN: list[Any] = []


def seen_by_kernel(value):
    SEEN.clear()
    shown(X, {"a": value})
    return SEEN[0]["a"]


def test_no_constructor_runs_a_second_time():
    result = scaled(X, Scaled(X), [Scaled(X, 3.0)], Doubled(X))

    assert [12.0, 12.0] == result.value.tolist()


def test_no_constructor_runs_a_second_time_in_a_graph(fresh_compiler):
    def function(x):
        return scaled(x, Scaled(x), [Scaled(x, 3.0)], Doubled(x)).value

    compiled = torch.compile(function, fullgraph=True, backend="eager")

    assert [12.0, 12.0] == compiled(X).tolist()


def test_a_named_tuple_with_a_constructor_of_its_own_keeps_its_values():
    assert [2.0, 2.0] == twice(X, Twice(X)).tolist()


def test_the_member_of_a_union_is_the_one_that_was_given():
    assert [3.0, 3.0] == either(X, Large(X)).tolist()
    assert [1.0, 1.0] == either(X, Small(X)).tolist()


def test_lists_of_different_kinds_may_be_united():
    assert [2.0, 2.0] == several(X, [2]).tolist()
    assert [3.0, 3.0] == several(X, [X * 3]).tolist()


FLAGS = [Access.READ | Access.WRITE, Access(0)]


@each("value", [*FLAGS, Word.LEFT, complex("inf"), complex(-0.0, 1), torch.Size([2, 3]), (1, 2), True])
def test_constants_arrive_as_they_were_given(value):
    found = seen_by_kernel(value)

    assert type(value) is type(found)
    assert repr(value) == repr(found)


class Odd(str):
    def __repr__(self):
        return "'something else'"


@each("value", [{Word.LEFT: X}, Odd("x"), {1}, torch.max(X, 0), [float], {2.0: X}])
def test_what_would_arrive_as_something_else_is_refused(value):
    with pytest.raises(KernelError, match="is not what was declared"):
        shown(X, {"a": value})


def made(name):
    class Mode(enum.Enum):
        A = 1

    @dataclass
    class Config:
        mode: Mode

    @custom_op(f"instances::{name}", reference=True)
    def op(x: Tensor, table: dict[str, Config]) -> Tensor:
        return x * (2 if isinstance(table["m"], Config) and table["m"].mode is Mode.A else 3)

    return op, {"m": Config(Mode.A)}


def test_classes_of_one_name_are_told_apart():
    first, table = made("first")
    second, other = made("second")

    x = torch.ones(1, requires_grad=True)
    values = [first(x, table), second(x, other)]

    assert [2.0, 2.0] == [value.item() for value in values]
    assert [2.0, 2.0] == [torch.autograd.grad(value, x)[0].item() for value in values]


@dataclass
class Tree:
    value: Tensor
    children: list["Tree"]


@custom_op("instances::tree", reference=True)
def tree(t: Tree) -> Tensor:
    return t.value + sum((tree_of(child) for child in t.children), torch.zeros_like(t.value))


def tree_of(t):
    return t.value + sum((tree_of(child) for child in t.children), torch.zeros_like(t.value))


def grow(x, depth):
    found = Tree(x, [])
    for _ in range(depth):
        found = Tree(x, [found])
    return found


def test_a_tree_that_no_eager_call_has_met_compiles(fresh_compiler):
    compiled = torch.compile(lambda x: tree(grow(x, 4)), backend="eager", fullgraph=True)

    assert [5.0, 5.0] == compiled(X).tolist()


def test_a_container_that_is_nested_too_deeply_says_so():
    with pytest.raises(KernelError, match="nested too deeply"):
        tree(grow(X, 200))


def test_a_kernel_that_changes_its_list_changes_no_default():
    found = [grown(X)[0].item() for _ in range(2)]
    found += [torch.vmap(grown)(X)[0].item() for _ in range(2)]
    found += [grown.overload(X)[0].item() for _ in range(2)]

    assert [2.0] * 6 == found


def test_none_for_a_tensor_is_refused():
    with pytest.raises(KernelError, match=r"'p.value' is not what was declared\n  expected   a tensor"):
        based(X, Base(None))


@custom_op("instances::based", reference=True)
def based(x: Tensor, p: Base) -> Tensor:
    return x * 1 if p.value is None else x * p.value


def test_two_gradients_for_one_place_are_refused():
    op = declared_doubly()

    with pytest.raises(GradientError, match="two for 'p_value'"):
        op(X.clone().requires_grad_(), Base(X)).sum().backward()


def declared_doubly():
    @custom_op("instances::doubly", replace=True)
    def op(x: Tensor, p: Base) -> Tensor:
        return x * p.value

    @op.register_backward
    def _(grad, x, p):
        return {"x": grad, "p": Base(grad), "p_value": grad}

    return op


def test_needs_of_a_pytree_node_is_a_tuple():
    found = []

    @custom_op("instances::node", replace=True)
    def op(x: Tensor, p: Polynomial) -> Tensor:
        return x * p.coefficients[0]

    @op.register_backward
    def _(grad, x, p, needs):
        found.append(needs.p)
        return {"x": grad * p.coefficients[0], "p": (grad * x,)}

    weight = torch.ones(2, requires_grad=True)
    op(X * 3, Polynomial([weight], (1,))).sum().backward()

    assert [(True,)] == found
    assert [3.0, 3.0] == weight.grad.tolist()


class Inner(NamedTuple):
    w: Tensor


class Clash(NamedTuple):
    b_w: Tensor
    b: Inner


def clashing(x: Tensor, p: Clash) -> Tensor:
    return x


class Outer(NamedTuple):
    a: Tensor
    h: Inner


def hiding(x: Tensor) -> Outer:
    return Outer(x, Inner(x))


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (clashing, {}, r"'p.b.w' and 'p.b_w' both travel under the name 'p_b_w'"),
        (hiding, {"hidden": ("h.w",)}, "which is a place in an output"),
    ],
)
def test_what_would_go_wrong_in_every_call_is_refused_at_once(function, options, message):
    with pytest.raises(DeclarationError, match=message):
        custom_op("instances::refused", function, **options)


def test_a_vmap_rule_with_other_parameters_is_refused():
    with pytest.raises(RegistrationError, match="vmap rule does not fit the schema"):
        based.register_vmap(lambda info, in_dims, x: None)


def test_an_exported_text_names_the_class_that_can_be_imported():
    text = "('r', 'containers:Affine'"

    graph = torch.export.export(Calls(lambda x: listed(x, [Affine(x, None)])), (X,)).graph

    assert any(text in str(argument) for node in graph.nodes for argument in node.args)


@custom_op("instances::listed", reference=True)
def listed(x: Tensor, ps: list[Affine]) -> Tensor:
    return x * ps[0].weight
