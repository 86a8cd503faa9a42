"""'namespace::name' as a value."""

from __future__ import annotations

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
    namespace, separator, name = text.partition("::")
    if not separator:
        raise DeclarationError(
            format_message(
                text,
                "the name has no namespace",
                expected="'namespace::name'",
                found=repr(text),
                do=f"name it, say, 'mylib::{text}'",
            )
        )
    if "." in name:
        raise DeclarationError(
            format_message(
                text,
                "the name contains a '.', which marks an overload",
                expected="'namespace::name'",
                found=repr(text),
                do="declare each overload under a name of its own",
            )
        )
    if not (namespace.isidentifier() and name.isidentifier()):
        raise DeclarationError(
            format_message(
                text,
                "namespace and name must be Python identifiers",
                expected="'namespace::name'",
                found=repr(text),
                do="use letters, digits and underscores",
            )
        )
    if namespace in RESERVED_NAMESPACES:
        raise DeclarationError(
            format_message(
                text,
                f"the namespace '{namespace}' is reserved for PyTorch",
                expected=f"a namespace other than {quote(sorted(RESERVED_NAMESPACES))}",
                found=repr(namespace),
                do="use the name of your library",
            )
        )
    return Name(namespace, name)
