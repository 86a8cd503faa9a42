"""The signature of whatever can be called: functions, methods, partials, callable objects, and builtins without one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def find_signature(function: Callable[..., Any]) -> inspect.Signature | None:  # Any: whatever a user registers
    """Return what a call may pass. What a partial has bound is not a parameter.

    Returns:
        None for what does not say: some builtins, and functions of another language.
    """
    if hasattr(function, "written_in"):  # its text is read once
        return getattr(function, "__signature__", None)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    bound = _bound_by_keyword(function)
    if not bound:
        return signature
    rest = [parameter for parameter in signature.parameters.values() if parameter.name not in bound]
    return signature.replace(parameters=rest)


def _bound_by_keyword(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that `functools.partial` gives; nested partials are one."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()
