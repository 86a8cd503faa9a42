"""Lines of shapes are read token by token; what cannot be read is an error with a mark under the character."""

import pytest
from expecttest import assert_expected_inline
from tables import each

from custom_autograd.shapes.line_parser import INDENT, NotationError, parse_line
from custom_autograd.shapes.notation import Dim


def refusal(text):
    """The problem, and the line with its mark, as a message shows them."""
    with pytest.raises(NotationError) as caught:
        parse_line(text)
    first, mark = caught.value.found.split("\n")
    return f"{caught.value.problem}\n{first}\n{mark[INDENT:]}"


def dims(text):
    (item,) = parse_line(f"x: {text} ->").inputs
    return item.dims


DIMS = {
    "n": Dim(("n",)),
    "*b": Dim(("b",), is_many=True),
    "#m": Dim(("m",), is_broadcast=True),
    "#*b": Dim(("b",), is_many=True, is_broadcast=True),
    "*#b": Dim(("b",), is_many=True, is_broadcast=True),
    "(k g)": Dim(("k", "g")),
    "(2 h)": Dim((2, "h")),
    "#(k g)": Dim(("k", "g"), is_broadcast=True),
    "3": Dim((3,)),
    "_": Dim(()),
    "...": Dim((), is_many=True),
    "[n+1]": Dim(("n",), plus=1),
    "[(2 n)+3]": Dim((2, "n"), plus=3),
}


@each("text", DIMS)
def test_each_kind_of_dimension_is_read(text):
    assert (DIMS[text],) == dims(text)


@each("text", ["n", "*b", "(k g)", "(2 h)", "#m", "#*b", "#(k g)", "3", "_", "...", "n+1"])
def test_dimension_is_written_as_it_is_read(text):
    bracketed = f"[{text}]" if "+" in text else text

    assert [text] == [str(dim) for dim in dims(bracketed)]


def test_scalar_has_no_dimensions():
    assert () == dims("")


def test_name_in_brackets_once_is_in_brackets_everywhere():
    line = parse_line("x: [n d], y: n -> out: d")

    assert {"n", "d"} == line.along


def test_optional_input_is_marked():
    line = parse_line("x: n, bias?: n -> out: n")

    assert [False, True] == [item.is_optional for item in line.inputs]


def test_line_may_be_broken():
    assert parse_line("x: n -> out: n") == parse_line("x: n -> out: n")
    assert ["x", "y"] == [item.name for item in parse_line("\n    x: n,\n    y: n\n -> out: n").inputs]


def test_op_without_inputs_or_outputs_has_an_empty_side():
    assert () == parse_line("-> out: [n]").inputs
    assert () == parse_line("x: n ->").outputs


def test_unknown_character():
    assert_expected_inline(
        refusal("x: n-d -> out: n"),
        """\
'-' has no meaning in a line of shapes
x: n-d -> out: n
    ^""",
    )


def test_no_arrow():
    assert_expected_inline(
        refusal("x: n"),
        """\
'->' is expected, between inputs and outputs
x: n
    ^""",
    )


def test_two_arrows():
    assert_expected_inline(
        refusal("x: n -> y: n -> z: n"),
        """\
the end of the line is expected
x: n -> y: n -> z: n
             ^""",
    )


def test_tensor_twice():
    assert_expected_inline(
        refusal("x: n, x: m -> out: n"),
        """\
'x' is given twice
x: n, x: m -> out: n
      ^""",
    )


def test_no_name():
    assert_expected_inline(
        refusal("3: n -> out: n"),
        """\
the name of a tensor is expected
3: n -> out: n
^""",
    )


def test_no_colon():
    assert_expected_inline(
        refusal("x n -> out: n"),
        """\
':' is expected after 'x'
x n -> out: n
  ^""",
    )


def test_two_groups():
    assert_expected_inline(
        refusal("x: n, y: *a d *b -> out: n"),
        """\
'y' has two groups of any number of dimensions, and nothing marks where one ends
x: n, y: *a d *b -> out: n
      ^""",
    )


def test_bracket_that_is_not_closed():
    assert_expected_inline(
        refusal("x: n [d, y: n -> out: n"),
        """\
this '[' is not closed before the next tensor
x: n [d, y: n -> out: n
     ^""",
    )


def test_empty_brackets():
    assert_expected_inline(
        refusal("x: n [] -> out: n"),
        """\
these brackets are empty
x: n [] -> out: n
     ^""",
    )


def test_star_before_a_product():
    assert_expected_inline(
        refusal("x: *(a b) -> out: a"),
        """\
'*' is written before one name only
x: *(a b) -> out: a
   ^""",
    )


def test_broadcast_literal():
    assert_expected_inline(
        refusal("x: n #3 -> out: n"),
        """\
'#' is written before a name or a product of names
x: n #3 -> out: n
     ^""",
    )


def test_mark_twice():
    assert_expected_inline(
        refusal("x: ##n -> out: n"),
        """\
'#' is given twice
x: ##n -> out: n
    ^""",
    )


def test_product_that_is_not_closed():
    assert_expected_inline(
        refusal("x: (a b, y: a -> out: b"),
        """\
this '(' is not closed
x: (a b, y: a -> out: b
   ^""",
    )


def test_product_of_one():
    assert_expected_inline(
        refusal("x: (a) -> out: a"),
        """\
a product has two factors or more
x: (a) -> out: a
   ^""",
    )


def test_dimension_that_is_none():
    assert_expected_inline(
        refusal("x: (a ?) -> out: a"),
        """\
a dimension is expected: a name, a number or a product
x: (a ?) -> out: a
      ^""",
    )


def test_sum_without_a_number():
    assert_expected_inline(
        refusal("x: [n+m] -> out: n"),
        """\
'+' is written between a name and a number: n+1
x: [n+m] -> out: n
     ^""",
    )


def test_sum_outside_of_brackets():
    assert_expected_inline(
        refusal("x: n+1 -> out: n"),
        """\
a dimension with '+' cannot be cut into slices: write it in brackets, [n+1]
x: n+1 -> out: n
    ^""",
    )


def test_name_that_is_one_dimension_and_a_group():
    assert_expected_inline(
        refusal("x: *b d, y: b -> out: d"),
        """\
'b' is one dimension here and any number of them, '*b', elsewhere
x: *b d, y: b -> out: d
            ^""",
    )


def test_commas_between_dimensions():
    assert_expected_inline(
        refusal("x: (n, d) -> out: n"),
        """\
dimensions are written without commas
x: (n, d) -> out: n
     ^""",
    )
    assert_expected_inline(
        refusal("x: n, d, y: n -> out: n"),
        """\
dimensions are written without commas
x: n, d, y: n -> out: n
    ^""",
    )
