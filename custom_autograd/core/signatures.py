"""The signature of whatever can be called: functions, methods, partials, callable objects, and builtins without one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
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


def plain_parameters(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of the parameters of a plain function: most rules are, and a signature takes 20 times as long.

    Returns:
        None if a parameter has a default or can be given in one way only, and for what is more than a function.
    """
    if type(function) is not FunctionType or vars(function) or function.__defaults__:
        return None
    code = function.__code__
    has_others = code.co_kwonlyargcount or code.co_posonlyargcount or code.co_flags & VARIADIC
    return None if has_others else code.co_varnames[: code.co_argcount]


VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _bound_by_keyword(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that `functools.partial` gives; nested partials are one."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()
