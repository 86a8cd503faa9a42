"""The parameters of a function -> what a schema says of each: type, default, and how values travel."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from custom_autograd.core.errors import KernelError, Origin
from custom_autograd.core.messages import LONGEST_VALUE, advise, is_text, quote, show
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import DeclarationOptions, Refusal, is_class
from custom_autograd.schema.conversions import ArgumentType, list_of, static_type
from custom_autograd.schema.types import (
    ARGUMENT_TYPES,
    describe_supported,
    example_of,
    find_argument_type,
    find_element_row,
    find_row,
)
from custom_autograd.torch_private.definitions import constants_by_number, parse_schema

# How a default is spelled in a schema, and the substitute for one that a schema cannot spell.
#
# Where the argument itself cannot be None, None replaces such a default in the dispatcher: `eps: float = inf` is
# `float? eps=None`, and kernels get inf for it. Else the dispatcher has no default, and calls of `torch.ops` must give
# the argument; the generated call fills it in.


NUMBER = (bool, int, float)
SIMPLE = r"[\w .:/+-]*"
"""Strings that every reader of schemas reads alike, that of torchgen included."""


def fits(spelling: str, value: Any) -> bool:  # Any: a default, in the dispatcher's form
    """Return True if a value can be the default of a type of the dispatcher."""
    if value is None:
        return spelling.endswith("?")
    element, bracket, length = spelling.removesuffix("?").partition("[")
    if bracket:
        if not isinstance(value, (list, tuple)) or length not in ("]", f"{len(value)}]"):
            return False
        return all(fits(element, item) for item in value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return False
    row = find_row(element.removesuffix("?"))
    return row is not None and isinstance(value, row.defaults)


def spell(spelling: str, value: Any) -> str | None:  # Any: as above
    """Return the default in the language of schemas, or None if it cannot be said."""
    text = _spell(value)
    if text is None:
        return None
    try:
        parsed = parse_schema(f"f({spelling} a={text}) -> ()")[0][0].default
    except (RuntimeError, ValueError, IndexError):  # the last two: what a number in the text is out of range for
        return None
    is_coded = isinstance(value, (*_CODED, torch.device, str))
    return text if is_coded or _is_same(parsed, value) else None


def with_substitute(found: ArgumentType, default: Any) -> ArgumentType:  # Any: in the form that kernels see
    """Return the type of an argument with None in place of its default."""
    to_dispatcher, from_dispatcher = found.to_dispatcher, found.from_dispatcher

    def check(value: Any) -> Any:
        if value is None:
            raise ValueError("expected a value, found None")
        return value if to_dispatcher is None else to_dispatcher(value)

    def back(value: Any) -> Any:
        if value is None:
            return default
        return value if from_dispatcher is None else from_dispatcher(value)

    return replace(found, spelling=f"{found.spelling}?", to_dispatcher=check, from_dispatcher=back, choices=None)


def _spell(value: Any) -> str | None:
    if value is None or isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return repr(float(value)) if value != 0 or str(float(value)) == "0.0" else None  # 0.0 and -0.0 are equal
    if isinstance(value, (str, torch.device)):
        return f'"{value}"' if re.fullmatch(SIMPLE, str(value), re.ASCII) else None
    if isinstance(value, _CODED):
        return str(value).removeprefix("torch.") if _is_named(value) else None
    if isinstance(value, (list, tuple)) and all(isinstance(item, NUMBER) for item in value):
        items = [_spell(item) for item in value]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    return None


def _is_named(value: Any) -> bool:
    """Return True if schemas have a name for a constant: some have none, such as `torch.preserve_format`."""
    rows = (row for row in ARGUMENT_TYPES if row.code is not None and isinstance(value, row.code))
    return any(value in constants_by_number(row.spelling, row.code).values() for row in rows)


def _is_same(parsed: Any, value: Any) -> bool:
    return list(parsed) == list(value) if isinstance(value, (list, tuple)) else bool(parsed == value)


_CODED: tuple[type, ...] = tuple(row.code for row in ARGUMENT_TYPES if row.code is not None)


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
    """Return what the schema will say of each parameter, by name."""
    if options.static:
        check_known("static=", options.static, tuple(signature.parameters), refuse, kind="not an argument")
    _check_annotated(signature, options, refuse)
    found = []
    for parameter in signature.parameters.values():
        annotation = annotations[parameter.name]
        type_ = _type(parameter, annotation, options, refuse)
        found.append(_with_default(Declared(parameter, type_), annotation, refuse))
    return {declared.parameter.name: declared for declared in _required_first(found)}


def check_known(option: str, given: Iterable[str], valid: Sequence[str], refuse: Refusal, *, kind: str) -> None:
    """Raise if an option of a declaration names something that is not there."""
    for name in given:
        if name not in valid:
            problem = f"{option} names '{name}', which is {kind}"
            raise refuse(problem, expected=quote(valid), found=repr(name), do=advise(name, valid))


def _check_annotated(signature: inspect.Signature, options: DeclarationOptions, refuse: Refusal) -> None:
    bare = [
        one.name
        for one in signature.parameters.values()
        if one.annotation is one.empty and one.kind is not one.VAR_KEYWORD and one.name not in options.static
    ]
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
    row = find_element_row(found.spelling)
    value = parameter.default if row is None or row.normalize is None else row.normalize(parameter.default)
    travelling = value if found.to_dispatcher is None else _convert(parameter, found.to_dispatcher, value, refuse)
    items = travelling if isinstance(travelling, (list, tuple)) else [travelling]
    if not all(is_text(item) for item in items if isinstance(item, str)):
        raise refuse(
            f"argument '{parameter.name}' has a default that the dispatcher cannot hold",
            expected="text that UTF-8 can hold",
            found=f"{show(parameter.default)}, with half of a surrogate pair",
            do="write the character itself (chr(0x1F600)), or take its number as an int",
        )
    if not fits(found.spelling, travelling):
        raise refuse(
            f"argument '{parameter.name}' has a default that does not fit its type",
            expected=spell_annotation(annotation),
            found=show(parameter.default),
            do="change the default or the annotation; a tensor can have no default but None",
        )
    default = value if found.from_dispatcher is None else found.from_dispatcher(travelling)
    text = spell(found.spelling, travelling)
    if text is None and not found.spelling.endswith("?") and "Tensor" not in found.spelling:
        return Declared(parameter, with_substitute(found, default), default, "None")
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
    if is_array(annotation):
        return f"annotate '{name}' as Tensor: kernels are given a tensor, and {name}.numpy() shares its memory"
    if is_class(annotation):
        return (
            f"annotate '{name}' with a dataclass or a dict[str, Tensor] of what it holds, "
            "or register the class as a pytree node with serialized_type_name="
        )
    return "change the annotation, or split the argument into ones the dispatcher can hold"


def is_array(annotation: Any) -> bool:  # Any: as above
    """Return True if an annotation is NumPy's array, such as ndarray or NDArray[float64]."""
    kind = typing.get_origin(annotation) or annotation
    return getattr(kind, "__module__", "") == "numpy" and getattr(kind, "__name__", "") == "ndarray"


def _is_callable(annotation: Any) -> bool:
    """Return True if it says that a function or a class is meant."""
    kinds = (Callable, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    return annotation in kinds or typing.get_origin(annotation) in kinds or annotation is typing.Callable


REFUSAL = re.compile(
    r"(?P<op>\S+)\(\) Expected a value of type '(?P<expected>.+)' for argument '(?P<name>\w+)' but instead found type "
    r"'(?P<found>.+)'\.\nPosition: \d+\nValue: (?P<value>.*)"
)


def error_of_type(
    origin: Origin, operator: str, error: Exception, examples: Mapping[str, str] | None = None
) -> KernelError | None:
    """Return the error of a call whose argument has the wrong type; None if the exception is about anything else."""
    told = REFUSAL.match(str(error))
    if told is None or told["op"] != operator:
        return None
    name, expected, value = told["name"], told["expected"].replace("List", "list"), told["value"][:LONGEST_VALUE]
    return origin.error(
        KernelError,
        f"argument '{name}' has the wrong type",
        expected=expected,
        found=f"{told['found']}: {value}",
        do=f"pass torch.as_tensor({name})"
        if expected.endswith("Tensor")
        else f"pass {examples[name] if examples else _example(expected)}, for example",
    )


def _example(expected: str) -> str:
    """Return a value of a type as TorchScript spells it: `Optional[list[int]]`, `number`."""
    element: str = re.findall(r"\w+", expected)[-1]
    spelling = "Scalar" if element == "number" else element
    return example_of(spelling + "[]" * ("list[" in expected))
