"""Decide whether a declared function may have containers; the modules that read them are imported only then."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING

from custom_autograd.core.annotations import Written
from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.types import find_argument_type, find_return_spelling

if TYPE_CHECKING:
    from custom_autograd.pytrees.argument_tree import ArgumentTree


def find_tree(written: Written, options: DeclarationOptions, refuse: Refusal) -> ArgumentTree | None:
    """Return the structure of a function's arguments and results, or None if none of them is a container.

    Raises:
        DeclarationError: a container holds what cannot travel.
    """
    if options.schema is not None or written.signature is None:  # what is wrong with it is said by inference.py
        return None
    if _returns_tensors(written) and _takes_plain_values(written, written.signature):
        return None
    from custom_autograd.pytrees.argument_tree import find_argument_tree  # imported where there may be containers

    return find_argument_tree(written.annotations, written.signature, options, refuse)


def _takes_plain_values(written: Written, signature: inspect.Signature) -> bool:
    """Return True if the schema knows each parameter; `*args` may be a tuple that it does not know."""
    return all(
        parameter.kind is not parameter.VAR_POSITIONAL
        and (name not in written.annotations or find_argument_type(written.annotations[name]) is not None)
        for name, parameter in signature.parameters.items()
    )


def _returns_tensors(written: Written) -> bool:
    """Return True if the schema knows the result, or each one of a tuple."""
    returned = written.annotations.get("return")
    parts = typing.get_args(returned) if typing.get_origin(returned) is tuple else (returned,)
    return returned is None or all(find_return_spelling(part) is not None for part in parts)
