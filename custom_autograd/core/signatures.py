"""The signature of whatever can be called: functions, methods, partials, callable objects, and builtins without one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
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


def has_parameters(function: Callable[..., Any], names: Sequence[str]) -> bool:
    """Return True if a plain function of Python surely has these parameters and no others, all of them by position.

    It takes a twentieth of the time of a signature, and most rules are such functions.
    """
    if type(function) is not FunctionType or vars(function):
        return False
    code = function.__code__
    is_plain = not code.co_kwonlyargcount and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return is_plain and code.co_varnames[: code.co_argcount] == tuple(names)


def _bound_by_keyword(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that `functools.partial` gives; nested partials are one."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()
