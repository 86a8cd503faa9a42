"""Autograd and the transforms see the tensors in an argument, whatever its type, or the declaration raises."""

import dataclasses
import itertools
from typing import NamedTuple, TypedDict

import pytest
import torch
from expecttest import assert_expected_inline
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from log_wrapper import Log
from messages.shown import message
from tables import each
from torch import Tensor

from custom_autograd import DeclarationError, custom_op

# How long a value takes, and how many hold no tensor, depends on the machine and on what is drawn.
UNKNOWN = [HealthCheck.too_slow, HealthCheck.filter_too_much]


class Named(NamedTuple):
    maybe: list[Tensor | None] | None
    one: Tensor


@dataclasses.dataclass
class Data:
    maybe: tuple[Tensor, ...] | None
    one: Tensor | None


class Typed(TypedDict):
    maybe: list[Tensor] | None


FIELDS = {kind: kind.__annotations__ for kind in (Named, Data, Typed)}

ANNOTATIONS = st.recursive(
    st.sampled_from([Tensor, *FIELDS]),
    lambda inner: st.one_of(
        inner.map(lambda one: one | None if one is not Typed else Typed),
        inner.map(lambda one: list[one]),
        inner.map(lambda one: tuple[one, ...]),
        inner.map(lambda one: dict[str, one]),
        st.tuples(inner, inner).map(lambda two: tuple[two]),
    ),
    max_leaves=4,
)
SCHEMA_TYPES = st.recursive(
    st.sampled_from(["Tensor", "Tensor?"]),
    lambda inner: st.one_of(
        inner.map(lambda one: f"{one.removesuffix('?')}?"),
        inner.map(lambda one: f"{one}[]"),
        inner.map(lambda one: f"{one}[2]"),
        inner.map(lambda one: f"Dict(str, {one})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}, {two[1]})"),
    ),
    max_leaves=3,
)


@st.composite
def values(draw, annotation):
    """Draw a value of a type, with an index in place of each tensor."""
    origin, inside = getattr(annotation, "__origin__", None), getattr(annotation, "__args__", ())
    if annotation is Tensor:
        return draw(st.integers(1, 5))
    if annotation in FIELDS:
        return annotation(**{name: draw(values(one)) for name, one in FIELDS[annotation].items()})
    if type(None) in inside:
        return draw(st.one_of(st.none(), values(inside[0])))
    if origin is list:
        return draw(st.lists(values(inside[0]), max_size=2))
    if origin is dict:
        return draw(st.dictionaries(st.sampled_from("ab"), values(inside[1]), max_size=2))
    if inside[1:] == (...,):
        return tuple(draw(st.lists(values(inside[0]), max_size=2)))
    return tuple(draw(values(one)) for one in inside)


def mapped(function, value):
    """Return a value with `function` applied to everything in it that is not a container."""
    if isinstance(value, dict):
        return {key: mapped(function, one) for key, one in value.items()}
    if isinstance(value, Data):
        items = [getattr(value, name) for name in ("maybe", "one")]  # torch 2.11 traces no `vars`
        return type(value)(*[mapped(function, one) for one in items])
    if hasattr(value, "_fields"):
        return type(value)(*[mapped(function, one) for one in value])
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(function, one) for one in value)
    return None if value is None else function(value)


def in_order(value):
    found = []
    mapped(found.append, value)
    return found


def plain(v):
    total = torch.zeros(2, dtype=torch.float64)
    for index, tensor in enumerate(in_order(v)):
        total = total + (index + 1) * tensor * tensor
    return total


def eager(f):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


X = torch.tensor([0.5, 2.0], dtype=torch.float64)
WAYS = {
    "eager": eager,
    "func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X,)),
    "vmap": lambda f: torch.vmap(f)(torch.stack([X, 2 * X, -X])),
    "vmap of func.grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(torch.stack([X, 2 * X])),
}


def check_all_ways(op, value):
    """Compare an op with the function that it is made of: each tensor of the value is a multiple of one input."""
    for name, way in WAYS.items():
        found, expected = (way(lambda x, f=f: f(mapped(lambda index: index * x, value))) for f in (op, plain))
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")


def draw(data):
    """Draw an annotation, and a value that has tensors."""
    annotation = data.draw(ANNOTATIONS)
    value = data.draw(values(annotation))
    assume(in_order(value))
    return annotation, value


def declare(annotation, **options):
    def function(v):
        return plain(v)

    function.__annotations__ = {"v": annotation, "return": Tensor}
    return custom_op("visible::annotated", function, replace=True, **options)


@settings(max_examples=60, suppress_health_check=UNKNOWN)
@given(st.data())
def test_tensors_are_visible_whatever_the_annotation(data):
    annotation, value = draw(data)

    check_all_ways(declare(annotation, reference=True), value)


@settings(max_examples=60, suppress_health_check=UNKNOWN)
@given(st.data())
def test_meta_and_needs_have_the_structure_of_an_argument(data):
    annotation, value = draw(data)
    op = declare(annotation)

    @op.register_backward
    def _(grad, v, meta, needs):
        indices = iter(range(1, 100))
        assert [one.shape for one in in_order(v)] == [one.shape for one in in_order(meta.v)]
        assert len(in_order(v)) == len([one for one in in_order(needs.v) if one])
        return {"v": mapped(lambda tensor: 2 * next(indices) * tensor * grad, v)}

    check_all_ways(op, value)


@settings(max_examples=60, suppress_health_check=UNKNOWN)
@given(st.data())
def test_tensors_are_visible_whatever_the_type_in_a_schema_or_it_is_refused(data):
    spelling = data.draw(SCHEMA_TYPES)
    try:
        op = custom_op("visible::written", plain, schema=f"({spelling} v) -> Tensor", reference=True, replace=True)
    except DeclarationError:
        return
    value = data.draw(values({"Tensor": Tensor, "Tensor?": Tensor | None}.get(spelling, list[Tensor | None])))
    value = [one or 1 for one in value] if spelling.startswith("Tensor[") else value
    assume(in_order(value))

    check_all_ways(op, value)


@settings(max_examples=40, suppress_health_check=UNKNOWN)
@given(st.data())
def test_autocast_casts_the_tensors_whatever_the_annotation(data):
    annotation, value = draw(data)
    op, x = declare(annotation, reference=True), torch.tensor([0.3, 1.7])
    op.register_autocast("cpu", "lower")

    def expected(x):
        return plain(mapped(lambda index: (index * x).bfloat16(), value))

    def found(x):
        with torch.autocast("cpu", torch.bfloat16):
            return op(mapped(lambda index: index * x, value))

    torch.testing.assert_close(found(x), expected(x), rtol=0, atol=0)
    torch.testing.assert_close(*(torch.func.grad(lambda x, f=f: f(x).sum())(x) for f in (found, expected)))


class Labelled(Tensor):
    """A subclass that PyTorch keeps by its __torch_function__."""


@settings(max_examples=40, suppress_health_check=UNKNOWN)
@given(st.data())
def test_a_subclass_is_visible_in_each_position_whatever_the_annotation(data):
    annotation, value = draw(data)
    op, expected = declare(annotation, reference=True), plain(mapped(lambda index: index * X, value))

    for position in range(len(in_order(value))):

        def call(wrap, position=position):
            count = itertools.count()
            return op(mapped(lambda i: wrap(i * X) if next(count) == position else i * X, value))

        Log.seen.clear()
        logged, labelled = call(Log), call(lambda tensor: tensor.as_subclass(Labelled))

        assert ["visible::annotated"] == [func.name() for func in Log.seen]
        assert (Log, Labelled) == (type(logged), type(labelled))
        torch.testing.assert_close(logged.inner, expected)
        torch.testing.assert_close(labelled.as_subclass(Tensor), expected)


def check_compiled(annotation, value):
    """Compare the gradients in compiled code with those of the function that the op is made of."""
    torch.compiler.reset()
    op = declare(annotation, reference=True)
    compiled = torch.compile(lambda x: op(mapped(lambda index: index * x, value)), backend="aot_eager", fullgraph=True)

    torch.testing.assert_close(eager(compiled), eager(lambda x: plain(mapped(lambda index: index * x, value))))


@settings(max_examples=12, suppress_health_check=UNKNOWN)
@given(st.data())
def test_gradients_in_compiled_code_whatever_the_annotation(data):
    check_compiled(*draw(data))


def test_a_list_of_dataclasses_in_a_tuple_in_compiled_code():
    check_compiled(tuple[list[Data], Tensor], ([Data((2,), None)], 1))


HIDDEN = ["Tensor[]?", "Tensor?[]?", "Tensor[2]?", "Tensor[][]", "(Tensor, Tensor)", "Dict(str, Tensor)", "Any", "Any?"]


@each("spelling", [*HIDDEN, "(Tensor, int)[]", "Tensor(a!)[]?"])
def test_a_type_that_hides_tensors_is_refused(spelling):
    with pytest.raises(DeclarationError, match="leave schema= out and annotate 'v'"):
        custom_op("visible::refused", plain, schema=f"({spelling} v) -> Tensor", mutates_args="unknown")


def test_the_message_names_the_annotation():
    assert_expected_inline(
        message(lambda: custom_op("visible::refused", plain, schema="(Tensor[]? v) -> Tensor")),
        """\
DeclarationError: visible::refused: the type of 'v' hides tensors from autograd and all transforms
  expected   Tensor, Tensor?, Tensor?[], Tensor[]
  found      Tensor[]?
  declared   FILE.py:LINE
  do         leave schema= out and annotate 'v': list[Tensor] | None, dict[str, Tensor], ...""",
    )
