"""The annotations of a function as objects, also where they were written as strings."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from custom_autograd.core.locations import unwrap
from custom_autograd.core.wish import Refusal


def annotations_of(function: Callable[..., Any], signature: inspect.Signature, refuse: Refusal) -> dict[str, Any]:
    """The annotations as objects, also where they were written as strings."""
    known: dict[str, Any] | None = getattr(function, "flat_annotations", None)
    if known is not None:
        return known  # generated: it has the annotations of no source
    plain = unwrap(function)
    try:
        return typing.get_type_hints(plain)
    except NameError:
        pass
    except Exception as error:
        raise refuse(f"the annotations cannot be read: {error}") from error
    scope = dict(getattr(plain, "__globals__", {}))
    closure = inspect.getclosurevars(plain) if inspect.isfunction(plain) else None
    scope.update(closure.nonlocals if closure else {})
    written = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    written["return"] = signature.return_annotation
    return {name: _evaluate(name, value, scope, refuse) for name, value in written.items()}


def _evaluate(name: str, annotation: Any, scope: dict[str, Any], refuse: Refusal) -> Any:  # Any: an annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)
    except Exception as error:
        raise refuse(
            f"the annotation of '{name}' cannot be read",
            found=repr(annotation),
            do="import the type at the top of the module; a type local to a function is not seen from "
            "a string annotation",
        ) from error
