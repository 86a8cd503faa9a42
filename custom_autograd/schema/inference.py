"""The annotations of a function, or a schema string, -> Schema; and where the two cannot both be right."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.locations import unwrap
from custom_autograd.core.messages import quote, show
from custom_autograd.schema.annotations import (
    DeclarationOptions,
    Refusal,
    Written,
    hints_of,
    hints_of_class,
    is_class,
    resolve,
)
from custom_autograd.schema.arguments import Declared, check_known, is_array, read_arguments, spell_annotation
from custom_autograd.schema.parsing import parse
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.schema.types import find_argument_type, find_return_spelling
from custom_autograd.torch_private.dispatch import HANDED_BACK

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
                expected=f"{argument.type}, as the schema declares",
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


def schema_of(function: Callable[..., Any], written: Written, options: DeclarationOptions, refuse: Refusal) -> Schema:
    """Infer the schema of an op from the annotations of its function, or read it from `options.schema`."""
    signature, annotations = written.signature, written.annotations
    if signature is None and options.schema is None:
        raise _no_signature(function, refuse)
    if options.schema is not None or signature is None:
        schema = parse(str(options.schema).strip(), signature, {}, {}, options, refuse)
        if signature is not None:
            check_annotations(function, signature, schema, options.static, refuse)
        return schema
    declared = read_arguments(signature, annotations, options, refuse)
    marks = _marks(declared, options, refuse)
    results = _results(signature, annotations["return"], marks, options, refuse)
    return parse(f"({_arguments(declared, marks)}) -> {results}", signature, annotations, declared, options, refuse)


def _no_signature(function: Callable[..., Any], refuse: Refusal) -> DeclarationError:
    return refuse(
        "the decorated object has no signature",
        expected="a Python function, or schema=",
        found=show(function),
        do="pass schema=, or wrap it in a function with annotations",
    )


def _marks(declared: dict[str, Declared], options: DeclarationOptions, refuse: Refusal) -> dict[str, str]:
    """Return how the schema spells the tensors of each argument that kernels write to, by name."""
    if not options.mutates:
        return {}
    named = () if isinstance(options.mutates, str) else options.mutates
    check_known("mutates_args", named, tuple(declared), refuse, kind="not an argument")
    found = {}
    for position, (name, argument) in enumerate(declared.items()):
        holds_tensors = argument.type.spelling.startswith("Tensor")
        if name in named and not holds_tensors:
            raise refuse(
                f"argument '{name}' is in mutates_args but holds no tensor",
                expected="a Tensor or a list of Tensors",
                found=spell_annotation(argument.parameter.annotation),
                do="take it out of mutates_args",
            )
        if name in named or (options.mutates == "unknown" and holds_tensors):
            found[name] = f"Tensor(a{position}!)"
    return found


def _arguments(declared: dict[str, Declared], marks: dict[str, str]) -> str:
    parts: list[str] = []
    for name, argument in declared.items():
        if argument.parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        spelling = argument.type.spelling.replace("Tensor", marks.get(name, "Tensor"), 1)
        parts.append(f"{spelling} {name}" + ("" if argument.text is None else f"={argument.text}"))
    return ", ".join(parts)


def _results(
    signature: inspect.Signature, annotation: Any, marks: dict[str, str], options: DeclarationOptions, refuse: Refusal
) -> str:
    if signature.return_annotation is inspect.Signature.empty:
        raise refuse(
            "the return value has no type annotation",
            expected="'-> Tensor', '-> tuple[Tensor, Tensor]', '-> None', ...",
            do="annotate it, or pass schema=",
        )
    parts = _return_parts(annotation)
    spelled = []
    for part in parts:
        spelling = find_return_spelling(part)
        if spelling is None:
            containers = "return a NamedTuple, a dataclass, a TypedDict, or a dict with its keys in outputs="
            raise refuse(
                "the return annotation is not supported",
                expected="Tensor, Tensor | None, list[Tensor], int, float, bool, or a tuple of those",
                found=spell_annotation(part),
                do="annotate it as Tensor, and return torch.from_numpy(...)" if is_array(part) else containers,
            )
        spelled.append(spelling)
    if HANDED_BACK & set(options.tags):  # each output is a tensor that the op writes to, as PyTorch's own ops have it
        if len(marks) != len(spelled) or any(spelling != "Tensor" for spelling in spelled):
            raise refuse(
                "an op tagged inplace or out returns each tensor it writes to, in order",
                expected=f"{len(marks)}: {quote(marks)}",
                found=str(len(spelled)),
            )
        spelled = list(marks.values())
    body = ", ".join(spelled)
    if _is_one_tuple(annotation, parts):
        if "!" in body:
            do = "return the argument itself, annotated '-> Tensor'"
            raise refuse("an op tagged inplace or out returns no tuple of one", found=str(annotation), do=do)
        return f"(({body}))"
    return body if len(parts) == 1 and not _is_tuple(annotation) else f"({body})"


def _is_tuple(annotation: object) -> bool:
    return _is_named_tuple(annotation) or typing.get_origin(annotation) is tuple


def _is_named_tuple(annotation: object) -> bool:
    return hasattr(annotation, "_fields") and is_class(annotation) and issubclass(annotation, tuple)


def _is_one_tuple(annotation: object, parts: list[object]) -> bool:
    """Return True for `tuple[X]`; `tuple[X, ...]` is a list, and a NamedTuple of one is made of its value."""
    return typing.get_origin(annotation) is tuple and len(parts) == 1 and parts[0] is not annotation


def _return_parts(annotation: Any) -> list[object]:
    if annotation is None or annotation is type(None):
        return []
    if _is_named_tuple(annotation):
        return list(hints_of_class(annotation).values())
    if typing.get_origin(annotation) is tuple:
        arguments = typing.get_args(annotation)
        return [annotation] if Ellipsis in arguments else list(arguments)
    return [annotation]
