"""Finds the types of the parameters of a Function: from its annotations, else from arguments of recorded calls."""

from __future__ import annotations

import enum
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Optional

import torch
from torch import Tensor

from custom_autograd.adoption.forward_calls import Function, parameters_of
from custom_autograd.core.locations import unwrap
from custom_autograd.schema.annotations import Refusal, hints_of
from custom_autograd.schema.conversions import path_of
from custom_autograd.schema.types import find_argument_type

NUMBERS = (bool, int, float, complex)
OTHERS = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)
RESERVED = re.compile(r"(grad|needs|meta|tangent|output|saved)(_|$)")
"""Names that rules, outputs and hidden outputs of the op have."""

Parameters = list[inspect.Parameter]


def typed_parameters(
    function: Function, calls: Sequence[Sequence[Any]], refuse: Refusal
) -> tuple[Parameters, tuple[str, ...]]:  # Any: arguments
    """Return the parameters of the op with annotations, and the names of those that take functions or classes."""
    hints, written = _hints(function), _written_out(parameters_of(function), calls, refuse)
    found: Parameters = []
    static: list[str] = []
    for position, one in enumerate(written):
        name = f"{one.name}_" if RESERVED.match(one.name) else one.name
        values = [call[position] for call in calls]
        annotation = hints.get(one.name)
        if annotation is None or find_argument_type(annotation) is None:
            annotation = _annotation_of(values, one.default)
        if annotation is None and values and all(map(_can_be_imported, values)):
            static.append(name)
        elif annotation is None:
            raise _unsupported(name, values, refuse)
        is_static = annotation is None
        found.append(one.replace(name=name, annotation=one.empty if is_static else annotation))
    return found, tuple(static)


def _hints(function: Function) -> dict[str, Any]:
    try:
        return hints_of(unwrap(function.forward))
    except Exception:  # noqa: BLE001 - annotations for type checkers need not be names at run time
        return {}


def _written_out(parameters: Parameters, calls: Sequence[Sequence[Any]], refuse: Refusal) -> Parameters:
    """Return one parameter for each argument; `*args` has as many as in the calls."""
    found: Parameters = []
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL:
            counts = {len(call) - len(found) for call in calls}
            if len(counts) != 1:
                raise refuse(
                    f"'*{one.name}' differs in length from call to call",
                    expected="one number of arguments",
                    found=", ".join(map(str, sorted(counts))),
                    do="make one op for each number, with samples= of that number",
                )
            names = [f"{one.name}_{index}" for index in range(counts.pop())]
            found += [inspect.Parameter(name, one.POSITIONAL_OR_KEYWORD) for name in names]
        else:
            found.append(one)
    return found


def _annotation_of(values: Sequence[Any], default: Any) -> Any:  # Any: arguments; an annotation, or None
    """Return the common type of values; None if they do not have one."""
    known = [*values, *([] if default is inspect.Parameter.empty else [default])]
    given = [value for value in known if value is not None]
    annotation = _type_of(given) if given else Tensor if known else None
    return Optional[annotation] if annotation and len(given) < len(known) else annotation  # noqa: UP045 - from values


def _type_of(given: list[Any]) -> Any:
    classes = {type(value) for value in given}
    if all(isinstance(value, Tensor) for value in given):
        return Tensor
    if classes <= set(NUMBERS) and (len(classes) == 1 or bool not in classes):
        return max(classes, key=NUMBERS.index)
    if all(isinstance(value, list) for value in given):
        element = _type_of([item for value in given for item in value])
        return element and list.__class_getitem__(element)
    if all(isinstance(value, tuple) for value in given):
        element = _type_of([item for value in given for item in value])
        return element and tuple.__class_getitem__((element, ...))
    cls = classes.pop() if len(classes) == 1 else None
    return cls if cls in OTHERS or (cls is not None and issubclass(cls, enum.Enum)) else None


def _can_be_imported(value: Any) -> bool:
    try:
        return bool(path_of(value))
    except ValueError:
        return False


def _unsupported(name: str, values: Sequence[Any], refuse: Refusal) -> Exception:
    kinds = dict.fromkeys(f"{type(value).__module__}.{type(value).__qualname__}" for value in values)
    return refuse(
        f"argument '{name}' does not have a type that an op can take",
        expected="tensors, numbers, text, constants of torch, lists of those, or functions that can be imported",
        found=", ".join(kind.removeprefix("builtins.") for kind in kinds),
        do="call it from a Function without this argument, such as one made for each value",
    )


def op_function(call: Callable[..., Any], source: Callable[..., Any], signature: inspect.Signature) -> Any:
    """Return a function with a signature, which messages and debuggers locate at `source`."""
    rows = [(one.name, one.default) for one in signature.parameters.values()]

    def function(*args: Any, **kwargs: Any) -> Any:  # Any: as the signature says
        return call(*args, *[kwargs.get(name, default) for name, default in rows[len(args) :]])

    annotations = {
        name: one.annotation for name, one in signature.parameters.items() if one.annotation is not one.empty
    }
    function.__annotations__ = {**annotations, "return": signature.return_annotation}
    plain = unwrap(source)
    if isinstance(plain, FunctionType):
        located = FunctionType(plain.__code__, plain.__globals__, plain.__name__, None, plain.__closure__)
        located.__module__, located.__qualname__ = plain.__module__, plain.__qualname__
        located.__annotations__ = function.__annotations__
        functools.update_wrapper(function, located)
    setattr(function, "__signature__", signature)  # noqa: B010 - mypy does not know it
    return function
