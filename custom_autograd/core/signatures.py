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


def signature_of_code(function: Callable[..., Any]) -> inspect.Signature | None:  # Any: as above
    """Return what a call may pass to the code itself: `functools.wraps` and `__signature__` may say something else."""
    if not isinstance(function, FunctionType) or not vars(function):
        return find_signature(function)
    code = FunctionType(function.__code__, {}, None, function.__defaults__, function.__closure__)
    code.__kwdefaults__, code.__annotations__ = function.__kwdefaults__, function.__annotations__
    return inspect.signature(code)


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


def find_misfit(signature: inspect.Signature, expected: Sequence[str], keywords: Sequence[str]) -> str | None:
    """Return why a function does not accept a call, as its author sees it: in its parameters, not in the call.

    Args:
        signature: of the function.
        expected: the names of the positional arguments; `*name` for any number of them.
        keywords: the names of the others.

    Returns:
        None if it accepts the call.
    """
    parameters = signature.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    starred = [name for name in expected if name.startswith("*")]
    filled = positional[: len(expected) - len(starred)]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        if starred:
            return f"it has no parameter like '{starred[0]}'"
        if len(expected) > len(positional):
            return f"it takes {len(positional)} of {len(expected)} positional arguments"
    for name in keywords:
        if name in (positional if starred else filled):
            return f"its parameter '{name}' is not keyword-only, and a positional argument takes its place"
        by_name = signature.parameters.get(name)
        if (by_name is None or by_name.kind in BY_POSITION) and inspect.Parameter.VAR_KEYWORD not in kinds:
            return f"it does not take the keyword argument '{name}'"
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in STARRED]
    missing = [name for name in required if name not in (*filled, *keywords)]
    return f"nothing is passed for its parameter '{missing[0]}'" if missing else None


VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _bound_by_keyword(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that `functools.partial` gives; nested partials are one."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()
