"""Which Python types an op may take and return, and how the dispatcher spells them.

ARGUMENT_TYPES has one row per type. Lists and optionals of a row, `Literal` and `Enum` are derived from it.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

import torch
from torch import Tensor

NO_CONVERSION: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """How one Python type travels through the dispatcher.

    Attributes:
        spelling: the dispatcher's type, such as `Tensor?[]` or `int`.
        to_dispatcher: turns a value of a call into the dispatcher's; None where they are the same.
        from_dispatcher: the inverse, for kernels and rules.
    """

    spelling: str
    to_dispatcher: Callable[[Any], Any] | None = NO_CONVERSION  # Any: one value of the row's type
    from_dispatcher: Callable[[Any], Any] | None = NO_CONVERSION


@dataclass(frozen=True, slots=True)
class Row:
    """One supported type: its spelling, and whether lists of it and optionals inside lists exist."""

    annotation: object
    spelling: str
    has_list: bool
    has_list_of_optional: bool = False


ARGUMENT_TYPES: tuple[Row, ...] = (
    Row(Tensor, "Tensor", has_list=True, has_list_of_optional=True),
    Row(torch.nn.Parameter, "Tensor", has_list=True),
    Row(bool, "bool", has_list=True),
    Row(int, "SymInt", has_list=True),
    Row(torch.SymInt, "SymInt", has_list=True),
    Row(float, "float", has_list=True),
    Row(complex, "complex", has_list=True),
    Row(torch.types.Number, "Scalar", has_list=True),
    Row(str, "str", has_list=True),
    Row(torch.dtype, "ScalarType", has_list=True),
    Row(torch.device, "Device", has_list=False),
    Row(torch.layout, "Layout", has_list=False),
    Row(torch.memory_format, "MemoryFormat", has_list=False),
    Row(torch.Size, "SymInt[]", has_list=False),
)

RETURN_SPELLINGS = {
    Tensor: "Tensor",
    int: "SymInt",
    torch.SymInt: "SymInt",
    float: "float",
    bool: "bool",
    torch.types.Number: "Scalar",
}


CODES = {"ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format}
"""Types that the dispatcher holds as integers: it takes any integer for one, and then reads beyond its own table."""


@functools.cache
def find_check(spelling: str) -> Callable[[Any], Any] | None:  # Any: a value of a call
    """What refuses values that the dispatcher wrongly takes for one of a type, or None where it takes none."""
    kind = CODES.get(spelling.removesuffix("?").removesuffix("[]"))
    if kind is None:
        return None
    is_list, is_optional = "[]" in spelling, spelling.endswith("?")

    def check(value: Any) -> Any:
        items = value if is_list and isinstance(value, (list, tuple)) else (value,)
        if not all(isinstance(item, kind) for item in items) and not (is_optional and value is None):
            raise ValueError(f"expected a torch.{kind.__name__}, found {value!r}")
        return value

    return check


def describe_supported() -> str:
    """The supported annotations in one line, for messages."""
    names = [getattr(row.annotation, "__name__", "Number") for row in ARGUMENT_TYPES]
    return f"{', '.join(dict.fromkeys(names))}, optionals and lists of them, Literal, Enum"


def find_argument_type(annotation: object) -> ArgumentType | None:
    """The row for an annotation, or None where the type is not supported."""
    spelling = _find_spelling(annotation)
    if spelling is not None:
        return ArgumentType(spelling)
    if typing.get_origin(annotation) is Literal:
        return _literal(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration(annotation)
    return _optional_of_converted(annotation)


def find_return_spelling(annotation: object) -> str | None:
    """The dispatcher's spelling of one returned value, or None where it cannot be returned."""
    for row, spelling in RETURN_SPELLINGS.items():
        if annotation == row:
            return spelling
    inner = _optional(annotation)
    if inner is not None and inner == Tensor:
        return "Tensor?"
    element = _element(annotation)
    return "Tensor[]" if element == Tensor else None


def _find_spelling(annotation: object) -> str | None:
    row = _find_row(annotation)
    if row is not None:
        return row.spelling
    inner = _optional(annotation)
    if inner is not None:
        spelling = _find_spelling(inner)
        return None if spelling is None or spelling.endswith("?") else f"{spelling}?"
    element = _element(annotation)
    return None if element is None else _find_list_spelling(element)


def _find_list_spelling(element: object) -> str | None:
    row = _find_row(element)
    if row is not None:
        return f"{row.spelling}[]" if row.has_list else None
    inner = _optional(element)
    row = None if inner is None else _find_row(inner)
    return f"{row.spelling}?[]" if row is not None and row.has_list_of_optional else None


def _find_row(annotation: object) -> Row | None:
    return next((row for row in ARGUMENT_TYPES if row.annotation == annotation), None)


def _optional(annotation: object) -> object | None:
    """X of `Optional[X]` or `X | None`, where Number (itself a union) may be X."""
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return None
    members: tuple[object, ...] = typing.get_args(annotation)
    rest = tuple(member for member in members if member is not type(None))
    if len(rest) == len(members):
        return None
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - built from values, not written


def _element(annotation: object) -> object | None:
    """X of `list[X]`, `Sequence[X]` or `tuple[X, ...]`."""
    origin = typing.get_origin(annotation)
    arguments: tuple[object, ...] = typing.get_args(annotation)
    if origin in (list, Sequence) and len(arguments) == 1:
        return arguments[0]
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0]
    return None


def _literal(annotation: object) -> ArgumentType | None:
    """`Literal` of values of one type: that type, with the value checked in each call."""
    values = typing.get_args(annotation)
    kinds = {type(value) for value in values}
    spelling = _find_spelling(kinds.pop()) if len(kinds) == 1 else None
    if spelling is None:
        return None

    def check(value: Any) -> Any:  # Any: one of the literal's values
        if value not in values:
            raise ValueError(f"expected one of {', '.join(map(repr, values))}, found {value!r}")
        return value

    return ArgumentType(spelling, to_dispatcher=check)


def _enumeration(annotation: type[enum.Enum]) -> ArgumentType:
    """An `Enum`: the name of the member, as str."""

    def to_name(value: Any) -> str:  # Any: a member, or wrongly something else
        if isinstance(value, str) and not isinstance(value, annotation) and value in annotation.__members__:
            return value
        if not isinstance(value, annotation):
            members = ", ".join(f"{annotation.__name__}.{name}" for name in annotation.__members__)
            raise ValueError(f"expected one of {members}, found {value!r}")
        return value.name

    return ArgumentType("str", to_dispatcher=to_name, from_dispatcher=annotation.__getitem__)


def _optional_of_converted(annotation: object) -> ArgumentType | None:
    inner = _optional(annotation)
    found = None if inner is None else find_argument_type(inner)
    if found is None or found.spelling.endswith("?"):
        return None
    return ArgumentType(f"{found.spelling}?", _unless_none(found.to_dispatcher), _unless_none(found.from_dispatcher))


def _unless_none(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:  # Any: as in ArgumentType
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)
