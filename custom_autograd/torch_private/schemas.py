"""Reads a schema string with the dispatcher's own parser.

`torch._C.parse_schema` is what `torch.library.Library.define` parses with; there is no public way to it.
"""

from __future__ import annotations

import functools
import re
import typing
from typing import Any

import torch

from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ParsedValue:
    """One argument or result, as the dispatcher reads it.

    Attributes:
        name: as written, empty where a result has no name.
        type: `Tensor`, `Tensor?[]`, `int`, `ScalarType`, ...
        is_keyword_only: it follows the `*`.
        is_written: its alias annotation carries a `!`.
        alias_set: the letters of its alias annotation.
        has_default: a default is written.
        default: that default, as the parser keeps it: a dtype, a layout and a memory format as its number.
        is_one_tuple: it is a result, in a tuple of one, whose type is `type`.
    """

    name: str
    type: str
    is_keyword_only: bool
    is_written: bool
    alias_set: frozenset[str]
    has_default: bool
    default: Any  # Any: whatever type the argument has
    is_one_tuple: bool = False


def parse_schema(text: str) -> tuple[tuple[ParsedValue, ...], tuple[ParsedValue, ...]]:
    """Parse `name(Tensor x, ...) -> (Tensor, ...)` into arguments and results.

    Raises:
        RuntimeError: the dispatcher's parser refuses the text; its message points at the column.
    """
    parsed = torch._C.parse_schema(text)
    return tuple(map(_read, parsed.arguments)), tuple(map(_read, parsed.returns))


def _read(value: Any) -> ParsedValue:  # Any: torch._C.Argument, which has no stub
    written = str(value.real_type)
    inner = re.fullmatch(r"Tuple\[([^,]*)\]", written) if "[" in written else None
    spelling = _spell(inner[1] if inner else written)
    alias = value.alias_info
    has_default = value.has_default_value()
    return ParsedValue(
        name=value.name,
        type=spelling,
        is_keyword_only=value.kwarg_only,
        is_written=alias is not None and alias.is_write,
        alias_set=frozenset() if alias is None else frozenset(alias.before_set),
        has_default=has_default,
        default=value.default_value if has_default else None,
        is_one_tuple=inner is not None,
    )


def _spell(real_type: str) -> str:
    """Return the schema spelling of a type: 'List[Optional[Tensor]]' -> 'Tensor?[]'."""
    if "[" not in real_type:
        return {"number": "Scalar", "SymInt": "int"}.get(real_type, real_type)
    if match := re.fullmatch(r"List\[(.*)\]", real_type):
        return f"{_spell(match[1])}[]"
    if match := re.fullmatch(r"Optional\[(.*)\]", real_type):
        return f"{_spell(match[1])}?"
    return real_type


def constant_of(spelling: str, cls: type, value: Any) -> Any:  # Any: a constant, or its number
    """Return a constant, such as a dtype, that the dispatcher may have as a number, as in lists of torch 2.11."""
    return value if isinstance(value, cls) else constants_by_number(spelling, cls)[value]


@functools.cache
def constants_by_number(spelling: str, cls: type) -> dict[int, Any]:  # Any: of the class
    """Return the constants of torch of a class by their numbers in the dispatcher, as its parser reads them.

    Constants that have no name in schemas, such as `torch.preserve_format`, are left out.
    """
    numbers: dict[int, Any] = {}
    for name, value in vars(torch).items():
        if isinstance(value, cls):
            try:
                argument = torch._C.parse_schema(f"f({spelling} a={name}) -> ()").arguments[0]
            except RuntimeError:
                continue
            numbers[typing.cast(int, argument.default_value)] = value
    return numbers
