"""A function's annotations, or a schema string, -> Schema."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.core.annotations import annotations_of
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.core.parsing import parse
from custom_autograd.core.schema import Schema
from custom_autograd.core.types import ArgumentType, describe_supported, find_argument_type, find_return_spelling
from custom_autograd.core.wish import Refusal, Wish
from custom_autograd.torch_private.schemas import can_be_default
from custom_autograd.torch_private.tags import HANDED_BACK


def schema_of(function: Callable[..., Any], wish: Wish) -> Schema:
    """Infers the schema of an op from the annotations of its function, or reads it from `wish.schema`.

    Raises:
        DeclarationError: something in the declaration cannot be an op; the message says what and where.
    """
    refuse = Refusal(wish.op, location_of(function))
    signature = _signature(function, refuse)
    if wish.schema is None:
        return parse(_Inference(function, signature, wish, refuse).text(), signature, function, wish, refuse)
    return parse(wish.schema.strip(), signature, function, wish, refuse)


def _signature(function: Callable[..., Any], refuse: Refusal) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise refuse(
            "the decorated object has no signature", expected="a Python function", found=show(function)
        ) from error


class _Inference:
    """Builds a schema string from annotations."""

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature, wish: Wish, refuse: Refusal) -> None:
        self.function = function
        self.signature = signature
        self.wish = wish
        self.refuse = refuse
        self.types = annotations_of(function, signature, refuse)

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
        found = self._type(parameter)
        spelling = found.spelling
        if self._is_mutated(parameter.name):
            if not spelling.startswith("Tensor"):
                raise self.refuse(
                    f"argument '{parameter.name}' stands in mutates_args but holds no tensor",
                    expected="a Tensor or a list of Tensors",
                    found=_spell(parameter.annotation),
                    do="take it out of mutates_args",
                )
            spelling = spelling.replace("Tensor", f"Tensor(a{position}!)", 1)
        if parameter.default is parameter.empty:
            return f"{spelling} {parameter.name}"
        return f"{spelling} {parameter.name}={self._default(parameter, found)}"

    def _type(self, parameter: inspect.Parameter) -> ArgumentType:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise self.refuse(
                f"parameter '{parameter}' cannot be passed by name",
                expected="parameters without '/', '*args' and '**kwargs'",
                do="give each argument a name of its own",
            )
        if parameter.annotation is parameter.empty:
            raise self.refuse(
                f"argument '{parameter.name}' has no type annotation",
                expected=describe_supported(),
                do="annotate it, or pass schema=",
            )
        annotation = self.types[parameter.name]
        found = find_argument_type(annotation)
        if found is None:
            raise self.refuse(
                f"argument '{parameter.name}' has an annotation that is not supported",
                expected=describe_supported(),
                found=_spell(annotation),
                do=_advice(annotation),
            )
        return found

    def _is_mutated(self, name: str) -> bool:
        if self.wish.mutates == "unknown":
            return str(find_argument_type(self.types[name]) or "").find("Tensor") >= 0
        return name in self.wish.mutates

    def _check_mutates(self, parameters: list[inspect.Parameter]) -> None:
        if isinstance(self.wish.mutates, str):
            return
        names = [parameter.name for parameter in parameters]
        for name in self.wish.mutates:
            if name not in names:
                raise self.refuse(
                    f"mutates_args names '{name}', which is no argument",
                    expected=quote(names),
                    found=repr(name),
                    do=suggest(name, names),
                )

    def _default(self, parameter: inspect.Parameter, found: ArgumentType) -> str:
        value = parameter.default
        if value is None and not found.spelling.endswith("?"):
            raise self.refuse(
                f"argument '{parameter.name}' has the default None, which its type does not include",
                expected=f"{_spell(parameter.annotation)} | None",
                found=_spell(parameter.annotation),
                do="make the annotation optional",
            )
        if found.to_dispatcher is not None:
            value = self._convert_default(parameter, found.to_dispatcher)
        text = _spell_default(value)
        if text is None:
            raise self.refuse(
                f"argument '{parameter.name}' has a default that a schema cannot hold",
                expected="None, a finite number, bool, str, dtype, device, layout, or a list of numbers",
                found=show(value),
                do="use None as the default, and replace it in the kernel",
            )
        return text

    def _convert_default(self, parameter: inspect.Parameter, convert: Callable[[Any], Any]) -> Any:
        """The default in the dispatcher's form (Any: of the argument's type)."""
        try:
            return convert(parameter.default)
        except ValueError as error:
            raise self.refuse(f"the default of argument '{parameter.name}' does not fit its type: {error}") from None

    def _results(self, parameters: list[inspect.Parameter]) -> str:
        if self.signature.return_annotation is inspect.Signature.empty:
            raise self.refuse(
                "the return value has no type annotation",
                expected="'-> Tensor', '-> tuple[Tensor, Tensor]', '-> None', ...",
            )
        annotation = self.types["return"]
        parts = _return_parts(annotation)
        spelled = [find_return_spelling(part) for part in parts]
        for part, spelling in zip(parts, spelled, strict=True):
            if spelling is None:
                raise self.refuse(
                    "the return annotation is not supported",
                    expected="Tensor, Tensor | None, list[Tensor], int, float, bool, or a tuple of those",
                    found=_spell(part),
                    do="return a NamedTuple, a dataclass, a TypedDict, or a dict with its keys in outputs=",
                )
        spelled = self._alias_results(spelled, parameters)
        body = ", ".join(str(spelling) for spelling in spelled)
        return body if len(parts) == 1 and not _is_tuple(annotation) else f"({body})"

    def _alias_results(self, spelled: list[str | None], parameters: list[inspect.Parameter]) -> list[str | None]:
        """An op tagged inplace or out hands back what it wrote to, as PyTorch's own do."""
        if not HANDED_BACK & set(self.wish.tags):
            return spelled
        written = [index for index, parameter in enumerate(parameters) if self._is_mutated(parameter.name)]
        if len(written) != len(spelled) or any(spelling != "Tensor" for spelling in spelled):
            raise self.refuse(
                "an op tagged inplace or out returns each tensor it writes to, in order",
                expected=f"{len(written)}: {quote(parameters[index].name for index in written)}",
                found=str(len(spelled)),
            )
        return [f"Tensor(a{index}!)" for index in written]


def _spell(annotation: object) -> str:
    """An annotation as it would be written: `int` rather than `<class 'int'>`."""
    return inspect.formatannotation(annotation)


def _advice(annotation: object) -> str:
    if typing.get_origin(annotation) is tuple:
        return "use list[...] where the length varies, or one argument per element"
    return "change the annotation, or split the argument into ones the dispatcher can hold"


def _spell_default(value: Any) -> str | None:  # Any: the default of a parameter
    if isinstance(value, (str, torch.device)):
        text = str(value)
        return None if '"' in text or "\\" in text else f'"{text}"'
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.") if can_be_default(value) else None
    if value is None or isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else None
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float)) for item in value):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return None


def _is_tuple(annotation: object) -> bool:
    is_named = isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    return is_named or typing.get_origin(annotation) is tuple


def _return_parts(annotation: object) -> list[object]:
    if annotation is None or annotation is type(None):
        return []
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return list(typing.get_type_hints(annotation).values())
    if typing.get_origin(annotation) is tuple:
        arguments = typing.get_args(annotation)
        return [annotation] if Ellipsis in arguments else list(arguments)
    return [annotation]
