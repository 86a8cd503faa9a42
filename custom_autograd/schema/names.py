"""'namespace::name' as a value."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import quote, show
from custom_autograd.frozen_dataclass import dataclass

DEFAULT = "default"
FORM = "'namespace::name' or 'namespace::name.overload'"
RESERVED_NAMESPACES = frozenset({"aten", "at", "prim", "prims", "torch", "pytorch", "quantized", "c10d"})


@dataclass(frozen=True, slots=True)
class Name:
    """Qualified name of an op: its namespace, its name within it, and the name of its overload.

    Attributes:
        namespace: of a library.
        name: an identifier.
        overload: an identifier; empty for the default overload.
    """

    namespace: str
    name: str
    overload: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}.{self.overload}" if self.overload else f"{self.namespace}::{self.name}"

    @property
    def qualifier(self) -> str:
        """Return the name within the namespace, "name" or "name.overload"."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    def suffixed(self, suffix: str) -> Name:
        """Return the name with something at the end of `name`; the overload stays."""
        return Name(self.namespace, f"{self.name}{suffix}", self.overload)


def parse_name(text: object, declared: str | None = None, *, is_torchs: bool = False) -> Name:
    """Read 'namespace::name' or 'namespace::name.overload'."""
    if not isinstance(text, str):  # such as a function that is decorated without a name
        name = str(getattr(text, "__name__", text))
        do = f"write custom_op('mylib::{name}')" if callable(text) else "write custom_op('namespace::name')"
        problem = "the name of an op is a string"
        raise DeclarationError(name, problem, expected=FORM, found=show(text), declared=declared, do=do)
    namespace, separator, qualifier = text.partition("::")
    if not separator:
        raise _refusal(text, "the name has no namespace", declared, do=f"name it, say, 'mylib::{text}'")
    name, dot, overload = qualifier.partition(".")
    if not text.isascii():
        do = "use ASCII letters, digits and underscores, which the dispatcher takes"
        raise _refusal(text, "the name is not ASCII", declared, do=do)
    if keyword.iskeyword(name):
        do = f"name it, say, '{namespace}::{name}_op'"
        raise _refusal(text, f"'{name}' is a keyword of Python", declared, do=do)
    if not (namespace.isidentifier() and is_name(name) and (overload.isidentifier() or not dot)):
        do = "use letters, digits and underscores"
        raise _refusal(text, "namespace and name must be Python identifiers", declared, do=do)
    if overload == DEFAULT:
        do = f"write '{namespace}::{name}'"
        raise _refusal(text, "'default' is the overload of a name without one", declared, do=do)
    if namespace in RESERVED_NAMESPACES and not is_torchs:
        reserved = quote(sorted(RESERVED_NAMESPACES))
        do = f"use the name of your library; reserved are {reserved}"
        raise _refusal(text, f"the namespace '{namespace}' is reserved for PyTorch", declared, do=do)
    return Name(namespace, name, overload)


def _refusal(text: str, problem: str, declared: str | None, *, do: str) -> DeclarationError:
    return DeclarationError(text, problem, expected=FORM, found=repr(text), declared=declared, do=do)


def is_name(text: object) -> bool:
    """Return True if it can stand as a name in Python source: an identifier that is not a keyword."""
    return isinstance(text, str) and text.isidentifier() and not keyword.iskeyword(text)


def names_of(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return one name or several, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)
