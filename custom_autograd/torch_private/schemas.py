"""Reads a schema string with the dispatcher's own parser.

`torch._C.parse_schema` is what `torch.library.Library.define` parses with; there is no public way to it.
"""

from __future__ import annotations

import functools
import re
import typing
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ParsedValue:
    """One argument or result, as the dispatcher reads it.

    Attributes:
        name: as written, empty where a result has no name.
        type: `Tensor`, `Tensor?[]`, `int`, `ScalarType`, ...
        is_keyword_only: it stands behind the `*`.
        is_written: its alias annotation carries a `!`.
        alias_set: the letters of its alias annotation.
        has_default: a default is written.
        default: that default, as a Python kernel sees it.
        is_one_tuple: it is a result, and stands in a tuple of one, whose type is `type`.
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
    """Parses `name(Tensor x, ...) -> (Tensor, ...)` into arguments and results.

    Raises:
        RuntimeError: the dispatcher's parser refuses the text; its message points at the place.
    """
    parsed = torch._C.parse_schema(text)
    return tuple(map(_read, parsed.arguments)), tuple(map(_read, parsed.returns))


def _read(value: Any) -> ParsedValue:  # Any: torch._C.Argument, which has no stub
    written = str(value.real_type)
    inner = re.fullmatch(r"Tuple\[([^,]*)\]", written)
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
        default=_to_python(spelling, value.default_value) if has_default else None,
        is_one_tuple=inner is not None,
    )


def _spell(real_type: str) -> str:
    """'List[Optional[Tensor]]' -> 'Tensor?[]'."""
    if match := re.fullmatch(r"List\[(.*)\]", real_type):
        return f"{_spell(match[1])}[]"
    if match := re.fullmatch(r"Optional\[(.*)\]", real_type):
        return f"{_spell(match[1])}?"
    return {"number": "Scalar", "SymInt": "int"}.get(real_type, real_type)


def _to_python(spelling: str, value: Any) -> Any:  # Any: a default of any type
    """The parser keeps dtypes, layouts and memory formats as their numbers: turns those into torch's objects."""
    kind = spelling.rstrip("?")
    if value is None or kind not in _ENUMERATIONS:
        return value
    return _numbers_of(kind)[value]


def dtype_of(value: Any) -> torch.dtype:  # Any: a dtype, or its number, as torch 2.11 hands lists of them to kernels
    """The dtype of a value of a list of dtypes."""
    return value if isinstance(value, torch.dtype) else typing.cast(torch.dtype, _numbers_of("ScalarType")[value])


def can_be_default(value: Any) -> bool:  # Any: a dtype, layout or memory format
    """Whether the parser knows a name for it: some have none, such as `torch.preserve_format`."""
    return any(value in _numbers_of(kind).values() for kind, cls in _ENUMERATIONS.items() if isinstance(value, cls))


_ENUMERATIONS = {"ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format}


@functools.cache
def _numbers_of(kind: str) -> dict[int, Any]:  # Any: dtype, layout or memory_format
    """The dispatcher's number of each dtype (or layout, or memory format), asked from its own parser."""
    numbers: dict[int, Any] = {}
    for name, value in vars(torch).items():
        if isinstance(value, _ENUMERATIONS[kind]):
            try:
                argument = torch._C.parse_schema(f"f({kind} a={name}) -> ()").arguments[0]
            except RuntimeError:
                continue  # a dtype that schemas cannot spell
            numbers[typing.cast(int, argument.default_value)] = value
    return numbers
