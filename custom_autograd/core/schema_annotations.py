"""Compares the annotations of a function with a schema that its author wrote: those that cannot both be right."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from custom_autograd.core.arguments import spell_annotation
from custom_autograd.core.declaration_options import Refusal
from custom_autograd.core.hints import hints_of
from custom_autograd.core.locations import unwrap
from custom_autograd.core.plain_types import is_class, resolve
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.core.types import find_argument_type

NUMBERS = ("bool", "int", "float", "complex")
COMPATIBLE = (
    {("Scalar", number) for number in NUMBERS} | {(number, "Scalar") for number in NUMBERS} | {("Device", "str")}
)
"""A type of the schema, and one of an annotation, that the same values may have."""


def check_annotations(
    function: Callable[..., Any], signature: inspect.Signature, schema: Schema, static: tuple[str, ...], refuse: Refusal
) -> None:
    """Raise if an annotation has another type than the schema, which decides what the function gets.

    Whether None is taken, the length of a list, and annotations of other kinds of values are not compared.

    Raises:
        DeclarationError: an annotation does not agree; the message has both spellings.
    """
    try:
        hints = hints_of(unwrap(function))
    except Exception:  # noqa: BLE001 - with a schema, annotations need not be readable
        return
    for argument, name in _pairs(signature, schema):
        annotation = resolve(hints.get(name, inspect.Parameter.empty))
        its = _kind(annotation)
        if its is None or argument.name in static:
            continue
        if not _agree(_plain(argument.type), its):
            raise refuse(
                f"the schema and the annotation of '{argument.name}' do not agree",
                expected=f"{argument.type}, as the schema says",
                found=spell_annotation(annotation),
                do="change one of them, or leave out schema= and let the annotations decide",
            )


def _agree(own: str, its: str) -> bool:
    """Return True if the same values, or lists of them, may have both types."""
    if own.endswith("[]") and its.endswith("[]"):
        return _agree(own[:-2], its[:-2])
    return own == its or (own, its) in COMPATIBLE


def _pairs(signature: inspect.Signature, schema: Schema) -> Iterator[tuple[Argument, str]]:
    """Yield each argument with the parameter that it is passed to."""
    parameters = list(signature.parameters.values())
    in_order = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    positional = [argument for argument in schema.arguments if not argument.is_keyword_only]
    yield from zip(positional, in_order, strict=False)
    yield from ((argument, argument.name) for argument in schema.arguments if argument.is_keyword_only)


def _kind(annotation: Any) -> str | None:  # Any: an annotation
    """Return the type that a schema inferred from an annotation has; None if it is no plain type."""
    if typing.get_origin(annotation) is typing.Literal or (is_class(annotation) and issubclass(annotation, enum.Enum)):
        return None
    found = find_argument_type(annotation)
    return None if found is None else _plain(found.spelling)


def _plain(spelling: str) -> str:
    """Return a type without what is not compared: `SymInt[2]?` is `int[]`, `Tensor?` is `Tensor`."""
    element, bracket, _ = spelling.replace("?", "").replace("SymInt", "int").partition("[")
    return element + "[]" * bool(bracket)
