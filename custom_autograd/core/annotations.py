"""The annotations of a function as objects, also where they were written as strings."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.hints import hints_of
from custom_autograd.core.locations import unwrap
from custom_autograd.core.plain_types import is_class, resolve
from custom_autograd.core.signatures import find_signature, signature_of_code
from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """The head of a function as written; it is read once for each declaration.

    Attributes:
        signature: what a call may pass; None for a builtin that does not say.
        annotations: by parameter, and that of "return", in terms of plain types; empty for an op with a schema.
    """

    signature: inspect.Signature | None
    annotations: dict[str, Any]  # Any: an annotation can be any object


def read_function(function: Callable[..., Any], options: DeclarationOptions, refuse: Refusal) -> Written:
    """Return the signature and the annotations of a function that is declared as an op.

    Raises:
        DeclarationError: an annotation cannot be read.
    """
    if options.schema is not None:
        return Written(signature_of_code(function), {})
    signature = find_signature(function)
    if signature is None:
        return Written(None, {})
    annotations = {name: resolve(value) for name, value in _read(function, signature, refuse).items()}
    for name, value in annotations.items():
        is_left_out = name in signature.parameters and signature.parameters[name].default is None
        if is_left_out and (is_class(value) or typing.get_origin(value) is not None):  # as torch.library has it
            annotations[name] = typing.Optional[value]  # noqa: UP045 - built from a value
    return Written(signature, annotations)


def _read(function: Callable[..., Any], signature: inspect.Signature, refuse: Refusal) -> dict[str, Any]:
    """Return the annotations as objects, also where they were written as strings."""
    plain = unwrap(function)
    written = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    written["return"] = signature.return_annotation
    try:
        return {**written, **hints_of(plain)}
    except (NameError, TypeError):  # a name that is not global; a `Final`, which Python has in classes only
        pass
    except Exception as error:
        do = "correct the annotation, or pass schema="
        raise refuse(f"the annotations cannot be read: {error}", do=do) from error
    scope = {**getattr(plain, "__globals__", {}), **_names_around(plain)}
    return {name: _evaluate(name, value, scope, refuse) for name, value in written.items()}


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:  # Any: whatever is around it
    """Return what a string annotation may name besides globals: type parameters, and names local to the function."""
    found: dict[str, Any] = {}
    frame = inspect.currentframe()
    code = getattr(function, "__code__", None)
    while frame is not None and code is not None:
        if code in frame.f_code.co_consts:
            found = {**frame.f_locals, **found}
            code = frame.f_code
        frame = frame.f_back
    if inspect.isfunction(function):
        found.update(inspect.getclosurevars(function).nonlocals)
    found.update({parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())})
    return found


def _evaluate(name: str, annotation: Any, scope: dict[str, Any], refuse: Refusal) -> Any:  # Any: an annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)
    except Exception as error:
        raise refuse(
            f"the annotation of '{name}' cannot be read",
            found=repr(annotation),
            do="import the type at the top of the module: it is not known where the op is declared",
        ) from error
