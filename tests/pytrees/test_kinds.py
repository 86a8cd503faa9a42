"""Values are taken apart into a constant text and what travels next to it, and put together again."""

import dataclasses
import sys
from typing import Any, NamedTuple, Optional, TypedDict, Union

import pytest
import torch
from containers import Affine, Polynomial, Shape, Tree
from hypothesis import given
from hypothesis import strategies as st
from tables import each
from torch import Tensor

from custom_autograd import KernelError
from custom_autograd.containers import treespecs
from custom_autograd.containers.leaf_types import UnknownKindError, kind_of, letters, no_parts
from custom_autograd.containers.treespecs import MisfitError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Box:
    content: Any
    label: str = "box"
    area: float = dataclasses.field(init=False, default=2.0)


LEAVES = st.one_of(
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(max_size=4),
    st.just(torch.ones(2)),
    st.sampled_from([torch.float32, torch.device("cpu"), torch.channels_last, torch.strided, Shape.LINE, 1 + 2j]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3)), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Box, inner),
        st.builds(lambda a, b: Polynomial([a, b], (1, 2)), inner, inner),
    ),
    max_leaves=12,
)


def taken_apart(value, annotation=Any):
    parts = no_parts()
    return treespecs.text_of(kind_of(annotation).encode(value, parts, "v")), parts


def put_together(text, parts):
    rows = {letter: iter(row) for letter, row in parts.items()}
    return treespecs.rebuild(treespecs.parse(text), lambda letter: next(rows[letter]))


def same(one, other):
    if isinstance(one, Polynomial):
        return type(one) is type(other) and same(one.coefficients, other.coefficients) and one.degrees == other.degrees
    if isinstance(one, Tensor):
        return one is other
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(same(getattr(one, n), getattr(other, n)) for n in names)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(VALUES)
def test_any_value_comes_back_as_it_was(value):
    text, parts = taken_apart(value)

    assert same(value, put_together(text, parts))


@given(VALUES)
def test_the_text_does_not_depend_on_numbers_and_tensors(value):
    def changed(leaf):
        if isinstance(leaf, bool) or not isinstance(leaf, (int, float)):
            return leaf
        return leaf + 1

    def mapped(one):
        if isinstance(one, (list, tuple)) and not hasattr(one, "_fields"):
            return type(one)(mapped(item) for item in one)
        return {key: mapped(item) for key, item in one.items()} if isinstance(one, dict) else changed(one)

    assert taken_apart(value)[0] == taken_apart(mapped(value))[0]


@given(VALUES)
def test_a_mirror_is_collected_in_the_order_of_the_tensors(value):
    text, parts = taken_apart(value)
    node, numbers = treespecs.parse(text), iter(range(100))
    mirror = treespecs.rebuild(node, lambda letter: next(numbers) if letter == "T" else None, is_plain=True)

    assert list(range(len(parts["T"]))) == list(treespecs.collect(node, mirror, "v"))


class Loaded(NamedTuple):
    x: Any


def test_a_class_that_a_loaded_text_names_first_keeps_that_name():
    assert Loaded is treespecs.parse(f"('r', '{__name__}:Loaded', 'T')").container.cls

    assert f"{__name__}:Loaded" == treespecs.name_of(Loaded)


class Sides(TypedDict):
    left: Tensor
    right: int


ONE = torch.ones(1)
FITTING = {
    "list of tensors": (list[Tensor], [ONE], "('l', 'T')"),
    "tuple of any length": (tuple[int, ...], (1, 2), "('u', 'I', 'I')"),
    "list of one tuple": (list[tuple[Tensor, float]], [(ONE, 2)], "('l', ('u', 'T', 'F'))", [(ONE, 2.0)]),
    "dict": (dict[str, Tensor | int], {"a": 1, "b": ONE}, "('d', ('a', 'I'), ('b', 'T'))"),
    "dict of int": (dict[int, bool], {3: True}, "('d', (3, ('=', True)))"),
    "typed dict": (Sides, {"right": 1, "left": ONE}, "('d', ('left', 'T'), ('right', 'I'))"),
    "optional": (Optional[int], None, "('=', None)"),  # noqa: UP045 - both spellings are taken
    "union": (Union[int, str], "x", "('=', 'x')"),  # noqa: UP007 - as above
    "slice": (slice, slice(1, None), "('s', 'I', ('=', None), ('=', None))"),
    "empty": (list[int], [], "('l',)"),
    "dtype": (list[torch.dtype], [torch.int8], "('l', ('t', 'constant torch.int8'))"),
    "enum": (Shape, Shape.LINE, "('e', 'containers:Shape', 'LINE')"),
    "record": (Affine, Affine(ONE, None), "('r', 'containers:Affine', 'T', ('=', None), 'I')"),
}


@each("name", FITTING)
def test_texts(name):
    annotation, value, expected, *changed = FITTING[name]
    came_back = changed[0] if changed else value
    text, parts = taken_apart(value, annotation)

    assert expected == text
    assert came_back == put_together(text, parts)


UNFIT = {
    "number for a tensor": (list[Tensor], [1], ("v[0]", "a tensor", "int: 1")),
    "bool for an int": (list[int], [True], ("v[0]", "an int", "bool: True")),
    "tensor for a float": (dict[str, float], {"a": torch.ones(1)}, ("v['a']", "a float", "a tensor")),
    "list for a dict": (dict[str, int], [1], ("v", "a dict", "a list of 1")),
    "tuple of two": (list[tuple[int, int]], [(1,)], ("v[0]", "a tuple of 2", "a tuple of 1")),
    "key": (dict[str, int], {1: 2}, ("v, key 1", "a str", "int: 1")),
    "missing key": (Sides, {}, ("v", "a dict with the keys 'left', 'right'", "an empty dict")),
    "function": (dict[str, Any], {"f": len}, ("v['f']", None, "builtin_function_or_method: <built-in function len>")),
    "deep": (Tree, Tree(torch.ones(1), [Tree(None, [])]), ("v.children[0].value", "a tensor", "NoneType: None")),
    "enum": (Shape, "LINE", ("v", "a Shape", "str: LINE")),
}


@each("name", UNFIT)
def test_a_misfit_says_where_what_and_what_instead(name):
    annotation, value, (path, expected, found) = UNFIT[name]

    with pytest.raises(MisfitError) as caught:
        taken_apart(value, annotation)

    assert path == caught.value.path
    assert expected in (None, caught.value.expected)
    assert found == caught.value.found


@pytest.mark.parametrize("annotation", [set[int], dict[tuple, int], complex | set, type, dict[float, int]])
def test_what_no_kind_stands_for_is_refused(annotation):
    with pytest.raises(UnknownKindError):
        kind_of(annotation)


def test_what_can_be_inside_is_known_before_any_call():
    assert {"T"} == letters(kind_of(dict[str, Tensor]))
    assert {"T", "I"} == letters(kind_of(Affine))
    assert {"T"} == letters(kind_of(Tree))
    assert {"I", "F"} == letters(kind_of(list[int | float | str]))
    assert {"T", "I", "F"} == letters(kind_of(dict[str, Any]))


@pytest.mark.parametrize("text", ["('r', '{}', 'T')", "('p', '{}', None, 'T')", "('e', '{}', 'LINE')"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [("not_imported:Box", "its module is not imported"), ("containers:Bux", "nothing of that name")],
    ids=["module", "name"],
)
def test_a_text_imports_nothing(text, name, problem, imports_of):
    """It is part of exported programs, where whoever edits the file chooses it."""
    (imports_of / "not_imported.py").write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(imports_of))

    with pytest.raises(KernelError, match=problem):
        treespecs.rebuild(treespecs.parse(text.format(name)), lambda letter: None)
    assert "not_imported" not in sys.modules
