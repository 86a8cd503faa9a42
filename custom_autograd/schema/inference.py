"""The annotations of a function, or a schema string, -> Schema; and where the two cannot both be right."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.locations import unwrap
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.schema.annotations import Written, hints_of, is_class, resolve
from custom_autograd.schema.arguments import Declared, read_arguments, spell_annotation
from custom_autograd.schema.declaration_options import DeclarationOptions, Refusal
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
    text = _Inference(signature, annotations, declared, options, refuse).text()
    return parse(text, signature, annotations, declared, options, refuse)


def _no_signature(function: Callable[..., Any], refuse: Refusal) -> DeclarationError:
    return refuse(
        "the decorated object has no signature",
        expected="a Python function, or schema=",
        found=show(function),
        do="pass schema=, or wrap it in a function with annotations",
    )


class _Inference:
    """Builds a schema string from annotations."""

    def __init__(
        self,
        signature: inspect.Signature,
        annotations: dict[str, Any],
        declared: dict[str, Declared],
        options: DeclarationOptions,
        refuse: Refusal,
    ) -> None:
        self.signature = signature
        self.types = annotations
        self.declared = declared
        self.options = options
        self.refuse = refuse

    def text(self) -> str:
        parameters = list(self.signature.parameters.values())
        self._check_mutates(parameters)
        parts, is_behind_star = [], False
        for position, parameter in enumerate(parameters):
            if parameter.kind is parameter.KEYWORD_ONLY and not is_behind_star:
                parts.append("*")
                is_behind_star = True
            parts.append(self._argument(position, parameter))
        return f"({', '.join(parts)}) -> {self._results(parameters)}"

    def _argument(self, position: int, parameter: inspect.Parameter) -> str:
        declared = self.declared[parameter.name]
        spelling = declared.type.spelling
        if self._is_mutated(parameter.name):
            if not spelling.startswith("Tensor"):
                raise self.refuse(
                    f"argument '{parameter.name}' stands in mutates_args but holds no tensor",
                    expected="a Tensor or a list of Tensors",
                    found=spell_annotation(parameter.annotation),
                    do="take it out of mutates_args",
                )
            spelling = spelling.replace("Tensor", f"Tensor(a{position}!)", 1)
        return f"{spelling} {parameter.name}" + ("" if declared.text is None else f"={declared.text}")

    def _is_mutated(self, name: str) -> bool:
        if self.options.mutates == "unknown":
            return "Tensor" in self.declared[name].type.spelling
        return name in self.options.mutates

    def _check_mutates(self, parameters: list[inspect.Parameter]) -> None:
        if isinstance(self.options.mutates, str):
            return
        names = [parameter.name for parameter in parameters]
        for name in self.options.mutates:
            if name not in names:
                raise self.refuse(
                    f"mutates_args names '{name}', which is not an argument",
                    expected=quote(names),
                    found=repr(name),
                    do=advise(name, names),
                )

    def _results(self, parameters: list[inspect.Parameter]) -> str:
        if self.signature.return_annotation is inspect.Signature.empty:
            raise self.refuse(
                "the return value has no type annotation",
                expected="'-> Tensor', '-> tuple[Tensor, Tensor]', '-> None', ...",
                do="annotate it, or pass schema=",
            )
        annotation = self.types["return"]
        parts = _return_parts(annotation)
        spelled = [find_return_spelling(part) for part in parts]
        for part, spelling in zip(parts, spelled, strict=True):
            if spelling is None:
                raise self.refuse(
                    "the return annotation is not supported",
                    expected="Tensor, Tensor | None, list[Tensor], int, float, bool, or a tuple of those",
                    found=spell_annotation(part),
                    do="return a NamedTuple, a dataclass, a TypedDict, or a dict with its keys in outputs=",
                )
        spelled = self._alias_results(spelled, parameters)
        body = ", ".join(str(spelling) for spelling in spelled)
        if _is_one_tuple(annotation, parts):
            if "!" in body:
                do = "return the argument itself, annotated '-> Tensor'"
                raise self.refuse("an op tagged inplace or out returns no tuple of one", found=str(annotation), do=do)
            return f"(({body}))"
        return body if len(parts) == 1 and not _is_tuple(annotation) else f"({body})"

    def _alias_results(self, spelled: list[str | None], parameters: list[inspect.Parameter]) -> list[str | None]:
        """Return the outputs of an op tagged inplace or out as the tensors it writes to, as PyTorch's own ops do."""
        if not HANDED_BACK & set(self.options.tags):
            return spelled
        written = [index for index, parameter in enumerate(parameters) if self._is_mutated(parameter.name)]
        if len(written) != len(spelled) or any(spelling != "Tensor" for spelling in spelled):
            raise self.refuse(
                "an op tagged inplace or out returns each tensor it writes to, in order",
                expected=f"{len(written)}: {quote(parameters[index].name for index in written)}",
                found=str(len(spelled)),
            )
        return [f"Tensor(a{index}!)" for index in written]


def _is_tuple(annotation: object) -> bool:
    is_named = is_class(annotation) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    return is_named or typing.get_origin(annotation) is tuple


def _is_one_tuple(annotation: object, parts: list[object]) -> bool:
    """Return True for `tuple[X]`; `tuple[X, ...]` is a list, and a NamedTuple of one is made of its value."""
    return typing.get_origin(annotation) is tuple and len(parts) == 1 and parts[0] is not annotation


def _return_parts(annotation: object) -> list[object]:
    if annotation is None or annotation is type(None):
        return []
    if is_class(annotation) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return list(hints_of(annotation).values())
    if typing.get_origin(annotation) is tuple:
        arguments = typing.get_args(annotation)
        return [annotation] if Ellipsis in arguments else list(arguments)
    return [annotation]
