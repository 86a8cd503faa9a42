"""Annotations that are strings are read where they stand."""

from __future__ import annotations

import dataclasses
import enum
import sys
from typing import Final, NamedTuple, Optional, TypedDict

import pytest
import torch
import typing_extensions
from tables import each
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import DeclarationError, custom_op

X = torch.ones(2, dtype=torch.float64)


def test_a_string_names_what_is_local_to_the_function_around_it():
    class Side(enum.Enum):
        LEFT = 2

    Array = Tensor  # noqa: N806 - a type

    @custom_op("annotations::local")
    def op(x: Array, side: Side = Side.LEFT) -> Array:
        return x * side.value

    assert_close(op(X), X * 2)


def test_a_string_names_what_is_local_two_functions_out():
    Array = Tensor  # noqa: N806 - a type

    def declare():
        @custom_op("annotations::nested")
        def op(x: Array, n: int) -> Array:
            return x * n

        return op

    assert "(Tensor x, SymInt n) -> Tensor" == declare().schema.text


def test_a_string_does_not_name_what_is_local_elsewhere():
    def declare(function):
        Elsewhere = Tensor  # noqa: F841, N806 - the point
        return custom_op("annotations::elsewhere", function)

    def op(x: Elsewhere) -> Tensor:  # noqa: F821 - the point
        return x

    with pytest.raises(DeclarationError, match="the annotation of 'x' cannot be read"):
        declare(op)


@dataclasses.dataclass
class Step:
    x: Tensor
    scale: dataclasses.InitVar[int]
    _: dataclasses.KW_ONLY
    count: Final[int] = 3
    doubled: Tensor = dataclasses.field(init=False)

    def __post_init__(self, scale):
        self.doubled = self.x * scale


def test_a_field_names_what_is_not_a_type():
    @custom_op("annotations::fields")
    def op(step: Step) -> Tensor:
        return step.doubled * step.count

    assert "(Tensor step_x, SymInt step_count, Tensor step_doubled) -> Tensor" == op.schema.text
    assert_close(op(Step(X, 2, count=5)), X * 10)


def test_a_string_within_a_string_is_read():
    @custom_op("annotations::twice")
    def op(xs: list["Tensor"], ys: Optional[list["int"]] = None, zs: list["int"] | None = None) -> "Tensor":  # noqa: UP037, UP045 - the point
        return xs[0] * 2

    assert "(Tensor[] xs, SymInt[]? ys=None, SymInt[]? zs=None) -> Tensor" == op.schema.text


class Required(typing_extensions.TypedDict):
    x: typing_extensions.ReadOnly[Tensor]
    n: typing_extensions.Required[int]


def test_keys_of_a_dict_may_be_marked():
    @custom_op("annotations::marked")
    def op(row: Required) -> Tensor:
        return row["x"] * row["n"]

    assert "(Tensor row_x, SymInt row_n) -> Tensor" == op.schema.text
    assert_close(op({"x": X, "n": 3}), X * 3)


class Optionally(TypedDict):
    x: Tensor
    n: typing_extensions.ReadOnly[typing_extensions.NotRequired[int]]


def test_a_key_that_may_be_missing_is_refused_at_the_declaration():
    def op(row: Optionally) -> Tensor:
        return row["x"]

    with pytest.raises(DeclarationError, match="argument 'row' has an annotation that is not supported"):
        custom_op("annotations::optionally", op)


@dataclasses.dataclass
class Unknown:
    x: Nowhere  # noqa: F821 - the point


class UnknownRow(NamedTuple):
    x: Nowhere  # noqa: F821 - the point


class UnknownKeys(typing_extensions.TypedDict):
    x: Nowhere  # noqa: F821 - the point


def returning(annotation):
    def op(x: Tensor):
        return x

    op.__annotations__["return"] = annotation
    return op


def taking(annotation):
    def op(x) -> Tensor:
        return x

    op.__annotations__["x"] = annotation
    return op


@each("cls", [Unknown, UnknownRow, UnknownKeys])
@each("declared", [taking, returning])
def test_a_field_that_cannot_be_read_is_named(declared, cls):
    problem = f"annotations of {cls.__name__} cannot be read: name 'Nowhere' is not defined"

    with pytest.raises(DeclarationError, match=rf"{problem}\n.*\n  do .* TYPE_CHECKING"):
        custom_op("annotations::unreadable", declared(cls))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` came with Python 3.12")
@each(
    ("text", "expected"),
    [
        ("type Alias = Nowhere", "type alias Alias cannot be evaluated: name 'Nowhere' is not defined"),
        ("type Alias = Tensor | list[Alias]", "a type alias that contains itself"),
        ("type Alias = Tensor | dict[str, Alias]", "a type alias that contains itself"),
    ],
    ids=["unknown", "list", "dict"],
)
def test_a_type_alias_that_cannot_be_read_is_named(text, expected):
    names = {"Tensor": Tensor}
    exec(text, names)

    with pytest.raises(DeclarationError, match=expected):
        custom_op("annotations::alias", taking(names["Alias"]))
