"""Names of a line have one size in all tensors of a call; shapes that do not fit are refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from custom_autograd.shapes.line_parser import parse_line
from custom_autograd.shapes.notation import SizeMismatch
from custom_autograd.shapes.unification import Sizes


def sizes_of(text, numbers=None, lists=frozenset(), **shapes):
    line = parse_line(text)
    given = {name: shape if name in lists else [shape] for name, shape in shapes.items() if shape is not None}
    sizes = Sizes(line, given, numbers or {}, frozenset(lists))
    return {name: sizes[name] for name in line.names() if name in sizes}


def refusal(text, numbers=None, lists=frozenset(), **shapes):
    with pytest.raises(SizeMismatch) as caught:
        sizes_of(text, numbers, lists, **shapes)
    return str(caught.value), caught.value.expected, caught.value.found


FOUND = {
    "names": ("x: n d, y: d -> out: n", {"x": (2, 3), "y": (3,)}, {"n": 2, "d": 3}),
    "group": ("x: *b d -> out: *b", {"x": (2, 4, 3)}, {"b": (2, 4), "d": 3}),
    "empty group": ("x: *b d -> out: *b", {"x": (3,)}, {"b": (), "d": 3}),
    "dimensions behind a group": ("x: a *b c -> out: *b", {"x": (2, 4, 5, 3)}, {"a": 2, "b": (4, 5), "c": 3}),
    "product": ("q: (k g), k: k -> out: g", {"q": (6,), "k": (2,)}, {"k": 2, "g": 3}),
    "product first": ("q: (k g), v: g, k: k -> out: g", {"q": (6,), "v": (3,), "k": (2,)}, {"k": 2, "g": 3}),
    "product with a number": ("x: (2 h) -> out: h", {"x": (8,)}, {"h": 4}),
    "empty product": ("q: (k g), k: k -> out: g", {"q": (0,), "k": (0,)}, {"k": 0, "g": 0}),
    "sum": ("x: [s+1] -> out: [s]", {"x": (4,)}, {"s": 3}),
    "broadcast": ("x: n, y: #n -> out: n", {"x": (4,), "y": (1,)}, {"n": 4}),
    "broadcast only": ("x: #n, y: #n -> out: n", {"x": (1,), "y": (4,)}, {"n": 4}),
    "absent": ("x: m n, y: #m #n -> out: n", {"x": (2, 4), "y": (4,)}, {"m": 2, "n": 4}),
    "broadcast groups": ("x: #*b, y: #*b -> out: *b", {"x": (2, 1), "y": (3,)}, {"b": (2, 3)}),
    "broadcast product": ("x: a b, y: #(a b) -> out: a", {"x": (2, 3), "y": (1,)}, {"a": 2, "b": 3}),
    "any size": ("x: _ n, y: ... -> out: n", {"x": (7, 2), "y": (1, 2, 3)}, {"n": 2}),
    "None": ("x: n, bias?: n -> out: n", {"x": (3,), "bias": None}, {"n": 3}),
}


@each("case", FOUND)
def test_sizes_are_found(case):
    text, shapes, expected = FOUND[case]

    assert expected == sizes_of(text, **shapes)


def test_name_that_is_an_argument_has_its_value():
    assert {"n": 4, "k": 2} == sizes_of("x: [n] -> out: [k]", {"k": 2}, x=(4,))


def test_names_that_only_lists_have_differ_from_place_to_place():
    line = parse_line("a: r d, b: d -> out: r")
    sizes = Sizes(line, {"a": [(2, 3), (4, 5)], "b": [(3,), (5,)]}, {}, frozenset({"a", "b", "out"}))

    assert [(2, 3), (4, 5)] == [(sizes.at("r", place), sizes.at("d", place)) for place in (0, 1)]
    assert [(2,), (4,)] == [sizes.shape_of(line.outputs[0], place) for place in (0, 1)]


REFUSED = {
    "another size": (
        "x: n d, y: d -> out: n",
        {"x": (2, 3), "y": (4,)},
        ("'y' must be (d) with d = 3", "d = 3, as in 'x'", "(4,)"),
    ),
    "too few": ("x: n d -> out: n", {"x": (2,)}, ("'x' must be (n d)", "2 dimensions", "(2,)")),
    "too many": ("x: n -> out: n", {"x": (2, 3)}, ("'x' must be (n)", "1 dimension", "(2, 3)")),
    "too few for a group": (
        "x: *b n d -> out: n",
        {"x": (2,)},
        ("'x' must be (*b n d)", "at least 2 dimensions", "(2,)"),
    ),
    "too many to be absent": (
        "x: m n, y: #m #n -> out: n",
        {"x": (2, 3), "y": (1, 2, 3)},
        ("'y' must be (#m #n)", "0 to 2 dimensions", "(1, 2, 3)"),
    ),
    "literal": ("x: n 3 -> out: n", {"x": (2, 4)}, ("'x' must be (n 3)", "3 where it has 4", "(2, 4)")),
    "group": (
        "x: *b, y: *b -> out: *b",
        {"x": (2, 3), "y": (3, 2)},
        ("'y' must be (*b) with b = (2, 3)", "b = (2, 3), as in 'x'", "(3, 2)"),
    ),
    "product": (
        "x: (a b), y: a b -> out: a",
        {"x": (5,), "y": (2, 3)},
        ("'x' must be ((a b)) with a = 2, b = 3", "6 where it has 5", "(5,)"),
    ),
    "no multiple": (
        "x: (2 h) -> out: h",
        {"x": (5,)},
        ("'x' must be ((2 h))", "a multiple of 2 where it has 5", "(5,)"),
    ),
    "sum": ("x: [s+3] -> out: [s]", {"x": (2,)}, ("'x' must be (s+3)", "3 or more where it has 2", "(2,)")),
    "broadcast": (
        "x: n, y: #n -> out: n",
        {"x": (4,), "y": (2,)},
        ("'y' must be (#n) with n = 4", "n = 4, or 1", "(2,)"),
    ),
}


@each("case", REFUSED)
def test_shapes_that_do_not_fit_are_refused_by_name(case):
    text, shapes, expected = REFUSED[case]

    assert expected == refusal(text, **shapes)


def test_argument_that_is_not_the_size_is_refused():
    found = refusal("x: [k] n -> out: n", {"k": 2}, x=(3, 4))

    assert ("'x' must be (k n) with k = 2", "k = 2, as in the argument 'k'", "(3, 4)") == found


NAMES = ("a", "b", "c", "d")


@st.composite
def calls(draw):
    """A line, the sizes of its names, and the shapes that follow."""
    sizes = {name: draw(st.integers(0, 5)) for name in NAMES}
    group = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    items, shapes = [], {}
    for place in range(draw(st.integers(1, 4))):
        parts, shape = [], []
        if draw(st.booleans()):
            parts.append("*g")
            shape += group
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True)):
            kind = draw(st.sampled_from(["plain", "twofold", "plus", "bracket"]))
            parts.append({"plain": name, "twofold": f"(2 {name})", "plus": f"[{name}+2]", "bracket": f"[{name}]"}[kind])
            shape.append({"plain": 1, "bracket": 1, "twofold": 2, "plus": 1}[kind] * sizes[name] + 2 * (kind == "plus"))
        items.append(f"x{place}: {' '.join(parts)}")
        shapes[f"x{place}"] = tuple(shape)
    return f"{', '.join(items)} ->", {**sizes, "g": group}, shapes


@given(calls())
def test_sizes_found_from_shapes_are_those_that_made_them(call):
    text, sizes, shapes = call
    bracketed = text.replace("-> ", "->")

    found = sizes_of(bracketed, **shapes)

    assert found == {name: sizes[name] for name in found}
    assert set(parse_line(bracketed).names()) == set(found)


@given(calls(), st.data())
def test_shapes_follow_from_the_sizes_that_were_found(call, data):
    text, _, shapes = call
    line = parse_line(text)
    sizes = Sizes(line, {name: [shape] for name, shape in shapes.items()}, {})

    assert shapes == {item.name: sizes.shape_of(item) for item in line.inputs}
