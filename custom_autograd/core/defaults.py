"""How a default is spelled in a schema, and the substitute for one that a schema cannot spell.

Where the argument itself cannot be None, None replaces such a default in the dispatcher: `eps: float = inf` is
`float? eps=None`, and kernels get inf for it. Else the dispatcher has no default, and calls of `torch.ops` must give
the argument; the generated call fills it in.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch

from custom_autograd.core.argument_types import ARGUMENT_TYPES, find_element_row, find_row
from custom_autograd.core.conversions import ArgumentType, Conversion
from custom_autograd.core.messages import is_text
from custom_autograd.torch_private.schemas import constants_by_number, parse_schema

NUMBER = (bool, int, float)
SIMPLE = r"[\w .:/+-]*"
"""Strings that every reader of schemas reads alike, that of torchgen included."""


def is_writable(value: Any) -> bool:  # Any: a default, in the dispatcher's form
    """Return True if the dispatcher can hold the strings in a default."""
    if isinstance(value, (list, tuple)):
        return all(map(is_writable, value))
    return not isinstance(value, str) or is_text(value)


def fits(spelling: str, value: Any) -> bool:  # Any: a default, in the dispatcher's form
    """Return True if a value can be the default of a type of the dispatcher."""
    if value is None:
        return spelling.endswith("?")
    element, bracket, length = spelling.removesuffix("?").partition("[")
    if bracket:
        if not isinstance(value, (list, tuple)) or length not in ("]", f"{len(value)}]"):
            return False
        return all(fits(element, item) for item in value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return False
    row = find_row(element.removesuffix("?"))
    return row is not None and isinstance(value, row.defaults)


def spell(spelling: str, value: Any) -> str | None:  # Any: as above
    """Return the default in the language of schemas, or None if it cannot be said."""
    text = _spell(value)
    if text is None:
        return None
    try:
        parsed = parse_schema(f"f({spelling} a={text}) -> ()")[0][0].default
    except (RuntimeError, ValueError, IndexError):  # the last two: what a number in the text is out of range for
        return None
    is_coded = isinstance(value, (*_CODED, torch.device, str))
    return text if is_coded or _is_same(parsed, value) else None


def with_substitute(found: ArgumentType, default: Any) -> ArgumentType:  # Any: in the form that kernels see
    """Return the type of an argument with None in place of its default."""
    return dataclasses.replace(
        found,
        spelling=f"{found.spelling}?",
        to_dispatcher=_unless_missing(found.to_dispatcher),
        from_dispatcher=_or_default(found.from_dispatcher, default),
        choices=None,
    )


def in_kernels_form(spelling: str, value: Any) -> Any:  # Any: a default as it was written
    """Return the default as a call that passes it explicitly would give it to a kernel."""
    row = find_element_row(spelling)
    return value if row is None or row.normalize is None else row.normalize(value)


def _spell(value: Any) -> str | None:
    if value is None or isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return repr(float(value)) if value != 0 or str(float(value)) == "0.0" else None  # 0.0 and -0.0 are equal
    if isinstance(value, (str, torch.device)):
        return f'"{value}"' if re.fullmatch(SIMPLE, str(value), re.ASCII) else None
    if isinstance(value, _CODED):
        return str(value).removeprefix("torch.") if _is_named(value) else None
    if isinstance(value, (list, tuple)) and all(isinstance(item, NUMBER) for item in value):
        items = [_spell(item) for item in value]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    return None


def _is_named(value: Any) -> bool:
    """Return True if schemas have a name for a constant: some have none, such as `torch.preserve_format`."""
    rows = (row for row in ARGUMENT_TYPES if row.code is not None and isinstance(value, row.code))
    return any(value in constants_by_number(row.spelling, row.code).values() for row in rows)


def _is_same(parsed: Any, value: Any) -> bool:
    return list(parsed) == list(value) if isinstance(value, (list, tuple)) else bool(parsed == value)


def _unless_missing(convert: Conversion | None) -> Conversion:
    def check(value: Any) -> Any:
        if value is None:
            raise ValueError("expected a value, found None")
        return value if convert is None else convert(value)

    return check


def _or_default(convert: Conversion | None, default: Any) -> Conversion:
    if convert is None:
        return lambda value: default if value is None else value
    return lambda value: default if value is None else convert(value)


_CODED: tuple[type, ...] = tuple(row.code for row in ARGUMENT_TYPES if row.code is not None)
