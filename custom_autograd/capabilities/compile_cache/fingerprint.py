"""A number that changes when the schema or a rule of an op changes, or a function that a rule calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from custom_autograd.core.locations import unwrap
from custom_autograd.registration.registry import OpRecord

DEEPEST = 4
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(record: OpRecord) -> int:
    """Return 64 bits of the schema and of everything that tracing runs: fake, reference, gradient and jvp rules."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(record.declaration.schema.text.encode())
    for rule in sorted(record.registrations.all(), key=lambda rule: rule.title):
        digest.update(rule.title.encode())
        digest.update(rule.settings.encode())
        for function in rule.functions:
            _update(digest, function, set(), 0)
    reference = record.reference()
    if reference is not None:
        _update(digest, reference, set(), 0)
    return int.from_bytes(digest.digest(), "big")


def _update(digest: Any, function: Callable[..., Any], seen: set[int], depth: int) -> None:  # Any: a hashlib object
    plain = unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None or id(code) in seen or depth > DEEPEST:
        return
    seen.add(id(code))
    for piece in _pieces(code):
        digest.update(piece)
    for value in (*_referenced(plain, code), *_bound(function)):
        if is_plain(value):
            digest.update(repr(value).encode())
        elif isinstance(value, FunctionType) and not (value.__module__ or "").startswith("torch"):
            _update(digest, value, seen, depth + 1)


def is_plain(value: Any) -> bool:  # Any: whatever a rule reads
    """Return True if the repr says all there is: a number or text, or a container of such."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(item) for row in value.items() for item in row)
    return isinstance(value, PLAIN)


def _pieces(code: CodeType) -> Iterator[bytes]:
    """Yield what a function does, without its location."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _pieces(constant)
        else:
            yield repr(constant).encode()


def _referenced(function: Any, code: CodeType) -> Iterator[Any]:
    """Yield the values of a function's global names, closure and defaults."""
    scope = getattr(function, "__globals__", {})
    yield from (scope[name] for name in code.co_names if name in scope)
    yield from (cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell))
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()


def _bound(function: Any) -> Iterator[Any]:
    """Yield the arguments that functools.partial bound."""
    while isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading is the question
    except ValueError:
        return False
    return True
