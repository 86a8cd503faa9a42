"""The annotations of functions and classes as objects, on every Python alike."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from custom_autograd.core.plain_types import is_class


def hints_of(annotated: Callable[..., Any]) -> dict[str, Any]:  # Any: an annotation can be any object
    """Return the annotations of a function or a class by name, as `typing.get_type_hints` does.

    Raises:
        NameError: a text names what is not global.
        TypeError: an annotation is not a type.
    """
    found = _find_classes(annotated)
    return _hints_of(annotated) if found is None else found


def _find_classes(annotated: Callable[..., Any]) -> dict[str, type] | None:
    """Return the annotations of a function if each is a class or the name of one; `typing` compiles every text."""
    scope = getattr(annotated, "__globals__", None)
    if scope is None or getattr(annotated, "__type_params__", None):  # which hide globals of their names
        return None
    found = {}
    for name, value in getattr(annotated, "__annotations__", {}).items():
        hint = scope.get(value, vars(builtins).get(value)) if isinstance(value, str) else value
        if not is_class(hint):
            return None
        found[name] = hint
    return found


if sys.version_info >= (3, 11):
    _hints_of = typing.get_type_hints

else:
    # Python 3.10 adds None to the type of a parameter whose default it is, and leaves the text in list["Name"] a text.

    def _hints_of(annotated: Callable[..., Any]) -> dict[str, Any]:
        """Return the annotations of a function or a class by name, as a later Python does."""
        if not isinstance(annotated, type):
            return _evaluated(getattr(annotated, "__annotations__", {}), getattr(annotated, "__globals__", {}), {})
        found: dict[str, Any] = {}
        for base in reversed(annotated.__mro__):
            names = vars(sys.modules.get(base.__module__, types))
            found |= _evaluated(inspect.get_annotations(base), names, vars(base))
        return found

    def _evaluated(written: Mapping[str, Any], names: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
        holder = types.SimpleNamespace(__annotations__={name: _referring(value) for name, value in written.items()})
        return typing.get_type_hints(holder, dict(names), dict(around))

    def _referring(annotation: Any) -> Any:
        """Return an annotation with references in place of texts within brackets."""
        if not isinstance(annotation, types.GenericAlias):
            return annotation
        arguments = (typing.ForwardRef(one) if isinstance(one, str) else _referring(one) for one in annotation.__args__)
        origin: Any = annotation.__origin__
        return types.GenericAlias(origin, tuple(arguments))
