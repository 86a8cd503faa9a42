"""'namespace::name' as a value."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import dataclass

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import format_message, quote

RESERVED_NAMESPACES = frozenset({"aten", "at", "prim", "prims", "torch", "pytorch", "quantized", "c10d"})


@dataclass(frozen=True, slots=True)
class Name:
    """The qualified name of an op: its namespace, and its name within it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}"


def parse_name(text: str) -> Name:
    """Reads 'namespace::name'.

    Raises:
        DeclarationError: there is no namespace, a part is no identifier, or the namespace is PyTorch's own.
    """
    if not isinstance(text, str):
        raise _refusal(str(text), "the name of an op is a string", do="write custom_op('namespace::name')")
    namespace, separator, name = text.partition("::")
    if not separator:
        raise _refusal(text, "the name has no namespace", do=f"name it, say, 'mylib::{text}'")
    if "." in name:
        raise _refusal(text, "the name contains a '.', which marks an overload", do="give each overload its own name")
    if not (namespace.isidentifier() and is_name(name)):
        raise _refusal(text, "namespace and name must be Python identifiers", do="use letters, digits and underscores")
    if namespace in RESERVED_NAMESPACES:
        reserved = quote(sorted(RESERVED_NAMESPACES))
        do = f"use the name of your library; reserved are {reserved}"
        raise _refusal(text, f"the namespace '{namespace}' is reserved for PyTorch", do=do)
    return Name(namespace, name)


def _refusal(text: str, problem: str, *, do: str) -> DeclarationError:
    return DeclarationError(format_message(text, problem, expected="'namespace::name'", found=repr(text), do=do))


def is_name(text: object) -> bool:
    """Whether it can stand as a name in Python source: an identifier that is no keyword."""
    return isinstance(text, str) and text.isidentifier() and not keyword.iskeyword(text)


def names_of(names: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)
