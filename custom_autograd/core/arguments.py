"""The parameters of a function -> what a schema says of each: type and default, and how values travel."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from custom_autograd.core import defaults
from custom_autograd.core.conversions import ArgumentType, list_of
from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.plain_types import is_class
from custom_autograd.core.statics import static_type
from custom_autograd.core.types import describe_supported, find_argument_type
from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Declared:
    """One parameter of a function that is declared as an op.

    Attributes:
        parameter: as the function has it.
        type: how its values travel.
        default: what kernels get where a call leaves it out, if it may be left out.
        text: that default in the language of schemas; None if the schema has none.
    """

    parameter: inspect.Parameter
    type: ArgumentType
    default: Any = None  # Any: of the argument's type
    text: str | None = None


def read_arguments(
    signature: inspect.Signature, annotations: dict[str, Any], options: DeclarationOptions, refuse: Refusal
) -> dict[str, Declared]:
    """Return what the schema will say of each parameter, by name.

    Raises:
        DeclarationError: a parameter cannot be an argument of an op; the message says why.
    """
    check_static(tuple(signature.parameters), options, refuse)
    _check_annotated(signature, options, refuse)
    found = []
    for parameter in signature.parameters.values():
        annotation = annotations[parameter.name]
        type_ = _type(parameter, annotation, options, refuse)
        found.append(_with_default(Declared(parameter, type_), annotation, refuse))
    return {declared.parameter.name: declared for declared in _required_first(found)}


def check_static(names: Sequence[str], options: DeclarationOptions, refuse: Refusal) -> None:
    """Refuse names in static= that are not arguments."""
    for name in options.static:
        if name not in names:
            raise refuse(
                f"static= names '{name}', which is not an argument",
                expected=quote(names),
                found=repr(name),
                do=advise(name, names),
            )


def _check_annotated(signature: inspect.Signature, options: DeclarationOptions, refuse: Refusal) -> None:
    rows = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    bare = [one.name for one in rows if one.annotation is one.empty and one.name not in options.static]
    if bare:
        have = "argument {} has" if len(bare) == 1 else "arguments {} have"
        raise refuse(
            f"{have.format(quote(bare))} no type annotation",
            expected="a type, such as Tensor, int, float, str, list[Tensor] or Tensor | None",
            do=f"annotate each, or pass schema=; a function or a class takes static=('{bare[0]}',)",
        )


def _type(parameter: inspect.Parameter, annotation: Any, options: DeclarationOptions, refuse: Refusal) -> ArgumentType:
    if parameter.kind is parameter.VAR_KEYWORD:
        raise refuse(
            f"parameter '{parameter}' takes arguments of any name, and a schema names each",
            expected="parameters with names of their own",
            do="give each argument a name of its own; '*' before them makes them keyword-only",
        )
    if parameter.name in options.static:
        is_optional = type(None) in typing.get_args(annotation) or parameter.default is None
        return static_type(parameter.name, refuse, is_optional=is_optional)
    found = find_argument_type(annotation)
    if found is not None and parameter.kind is parameter.VAR_POSITIONAL:
        found = None if "[" in found.spelling else list_of(found)
    if found is None:
        raise refuse(
            f"argument '{parameter.name}' has an annotation that is not supported",
            expected=describe_supported(),
            found=spell_annotation(annotation),
            do=_advice(parameter.name, annotation),
        )
    return found


def _with_default(declared: Declared, annotation: Any, refuse: Refusal) -> Declared:
    """Add the default, in the form that kernels see and in that of the schema."""
    parameter, found = declared.parameter, declared.type
    if parameter.default is parameter.empty:
        return declared
    value = defaults.in_kernels_form(found.spelling, parameter.default)
    travelling = value if found.to_dispatcher is None else _convert(parameter, found.to_dispatcher, value, refuse)
    if not defaults.is_writable(travelling):
        raise refuse(
            f"argument '{parameter.name}' has a default that the dispatcher cannot hold",
            expected="text that UTF-8 can hold",
            found=f"{show(parameter.default)}, with half of a surrogate pair",
            do="write the character itself (chr(0x1F600)), or take its number as an int",
        )
    if not defaults.fits(found.spelling, travelling):
        raise refuse(
            f"argument '{parameter.name}' has a default that does not fit its type",
            expected=spell_annotation(annotation),
            found=show(parameter.default),
            do="change the default or the annotation; a tensor can have no default but None",
        )
    default = value if found.from_dispatcher is None else found.from_dispatcher(travelling)
    text = defaults.spell(found.spelling, travelling)
    if text is None and not found.spelling.endswith("?") and "Tensor" not in found.spelling:
        return Declared(parameter, defaults.with_substitute(found, default), default, "None")
    return replace(declared, default=default, text=text)


def _convert(parameter: inspect.Parameter, convert: Callable[[Any], Any], value: Any, refuse: Refusal) -> Any:
    """Return the default in the dispatcher's form (Any: of the argument's type)."""
    try:
        return convert(value)
    except ValueError as error:
        problem = f"the default of argument '{parameter.name}' does not fit its type: {error}"
        raise refuse(problem, do="change the default, or the annotation") from None


def _required_first(found: list[Declared]) -> list[Declared]:
    """Remove from the schema defaults that precede an argument without one: it would not be a schema."""
    ordered, is_required_behind = [], False
    for declared in reversed(found):
        if declared.parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            if is_required_behind:
                declared = replace(declared, text=None)
            is_required_behind |= declared.text is None and not declared.type.spelling.endswith("]")
        ordered.append(declared)
    return ordered[::-1]


def spell_annotation(annotation: object) -> str:
    """Return an annotation as it would be written: `int` rather than `<class 'int'>`."""
    return inspect.formatannotation(annotation)


def _advice(name: str, annotation: Any) -> str:
    members = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    if any(map(_is_callable, members or (annotation,))):
        return f"pass static=('{name}',) to custom_op: it then takes functions and classes that can be imported"
    if typing.get_origin(annotation) is tuple:
        return "use list[...] where the length varies, or one argument per element"
    if isinstance(annotation, type(torch.FloatTensor)):
        return "annotate it as Tensor, and check the dtype in the kernel"
    if is_class(annotation):
        return (
            f"annotate '{name}' with a dataclass or a dict[str, Tensor] of what it holds, "
            "or register the class as a pytree node with serialized_type_name="
        )
    return "change the annotation, or split the argument into ones the dispatcher can hold"


def _is_callable(annotation: Any) -> bool:
    """Return True if it says that a function or a class is meant."""
    kinds = (Callable, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    return annotation in kinds or typing.get_origin(annotation) in kinds or annotation is typing.Callable
