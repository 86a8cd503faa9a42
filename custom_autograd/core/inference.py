"""A function's annotations, or a schema string, -> Schema."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from custom_autograd.core.annotations import Written
from custom_autograd.core.arguments import Declared, read_arguments, spell_annotation
from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.hints import hints_of
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.parsing import parse
from custom_autograd.core.plain_types import is_class
from custom_autograd.core.schema import Schema
from custom_autograd.core.schema_annotations import check_annotations
from custom_autograd.core.types import find_return_spelling
from custom_autograd.torch_private.tags import HANDED_BACK


def schema_of(function: Callable[..., Any], written: Written, options: DeclarationOptions, refuse: Refusal) -> Schema:
    """Infer the schema of an op from the annotations of its function, or read it from `options.schema`.

    Raises:
        DeclarationError: something in the declaration cannot be an op; the message says what and where.
    """
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
