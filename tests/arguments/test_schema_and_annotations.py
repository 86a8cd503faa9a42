"""A schema and annotations that cannot both be right are refused; pairs that the same values have are not."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import DeclarationError, custom_op

Number = int | float

PAIRS = [
    ("float", int, False),
    ("int", float, False),
    ("bool", int, False),
    ("float", Tensor, False),
    ("Tensor", float, False),
    ("Tensor[]", Tensor, False),
    ("Tensor", list[Tensor], False),
    ("float[]", float, False),
    ("int[]", list[float], False),
    ("int", torch.dtype, False),
    ("str", int, False),
    ("float", float, True),
    ("SymInt", int, True),
    ("int", torch.SymInt, True),
    ("Scalar", float, True),
    ("Scalar", Number, True),
    ("float", Number, True),
    ("float?", float, True),
    ("Tensor", Tensor | None, True),
    ("Tensor?", Tensor, True),
    ("SymInt[2]", Sequence[int], True),
    ("SymInt[]", Sequence[int | torch.SymInt], True),
    ("int[]", tuple[int, int], True),
    ("Device", str, True),
    ("ScalarType", torch.dtype, True),
    ("str", Literal["a", "b"], True),
    ("float", "no name that is known", True),
    ("float", Callable, True),
]


def declared(spelling, annotation):
    def plain(x, value):
        return x

    plain.__annotations__ = {"x": Tensor, "value": annotation, "return": Tensor}
    return custom_op("both::spelled", plain, schema=f"(Tensor x, {spelling} value) -> Tensor", replace=True)


@each(("spelling", "annotation", "is_legal"), PAIRS)
def test_pairs(spelling, annotation, is_legal):
    if is_legal:
        assert "value" in declared(spelling, annotation).schema.argument_names
        return
    with pytest.raises(DeclarationError, match="the annotation of 'value' do not agree"):
        declared(spelling, annotation)


def test_message():
    with pytest.raises(DeclarationError) as caught:
        declared("float", int)

    assert_expected_inline(
        re.sub(r":\d+", ":N", str(caught.value)),
        """\
both::spelled: the schema and the annotation of 'value' do not agree
  expected   float, as the schema declares
  found      int
  declared   test_schema_and_annotations.py:N
  do         change one of them, or leave out schema= and let the annotations decide""",
    )


def test_parameters_with_other_names_are_compared_by_position():
    def plain(a: Tensor, b: int, *, last: float) -> Tensor:
        return a

    custom_op("both::named", plain, schema="(Tensor x, int n, *, float last) -> Tensor")
    with pytest.raises(DeclarationError, match="annotation of 'n'"):
        custom_op("both::named2", plain, schema="(Tensor x, float n, *, float last) -> Tensor")
    with pytest.raises(DeclarationError, match="annotation of 'last'"):
        custom_op("both::named3", plain, schema="(Tensor x, int n, *, int last) -> Tensor")
