"""Static arguments: an importable function or class, which travels through the dispatcher as "module:qualname"."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from custom_autograd.core.conversions import ArgumentType, optional
from custom_autograd.core.declaration_options import Refusal
from custom_autograd.core.errors import KernelError
from custom_autograd.core.imported import find_imported, reason_and_advice
from custom_autograd.core.messages import show
from custom_autograd.torch_private.compiler import constant_in_graphs

HOMES = ("torch", "torch.nn.functional", "torch.special")
"""Where builtins of torch are looked for that do not say where they are from."""


def static_type(argument: str, refuse: Refusal, *, is_optional: bool) -> ArgumentType:
    """Return how a static argument of an op travels."""
    found = ArgumentType("str", path_of, functools.partial(_load, argument, refuse), example="torch.relu")
    return optional(found) if is_optional else found


def path_of(value: Any) -> str:  # Any: a function or class, or wrongly something else
    """Return the name by which a function or class can be imported, here and in any process that has its module.

    Raises:
        ValueError: there is none, or something else has it.
    """
    path, problem = _path_or_problem(value)
    if problem:
        raise ValueError(problem)
    return path


@constant_in_graphs  # Dynamo guards on which function it is given
def _path_or_problem(value: Any) -> tuple[str, str]:
    if not callable(value):
        return "", f"expected a function or a class, found {show(value)}"
    path = next((path for path in _candidates(value) if find_imported(path) is value), None)
    if path is not None:
        return path, ""
    return "", (
        f"expected a function or class that can be imported, found {_describe(value)}: define it at the top "
        "level of a module, and pass what varies as arguments of the op"
    )


def _candidates(value: Any) -> list[str]:
    """Return what its path may be: its own word for it, or where torch shows it."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return []
    module = getattr(value, "__module__", None) or "torch._C"
    shown = [f"{home}:{name.rpartition('.')[2]}" for home in HOMES]
    own = f"{module}:{name}"
    return [*shown, own] if own.startswith("torch._") else [own, *shown]


def _load(argument: str, refuse: Refusal, path: str) -> Any:  # Any: what was passed
    """Return what has a path.

    Raises:
        KernelError: its module is not imported, or has nothing of that name.
    """
    found = find_imported(path)
    if found is not None:
        return found
    reason, advice = reason_and_advice(path)
    raise KernelError(
        refuse.op,
        f"the static argument '{argument}' names what cannot be found",
        expected="'module:name' of a function or class in a module that is imported in this process",
        found=reason,
        declared=refuse.location,
        do=advice,
    )


def _describe(value: Any) -> str:
    """Return the obstacle, in one phrase."""
    if isinstance(value, functools.partial):
        return "a functools.partial"
    if inspect.ismethod(value):
        return f"the bound method {value.__qualname__}"
    name = str(getattr(value, "__qualname__", ""))
    if "<lambda>" in name:
        return "a lambda"
    if "<locals>" in name:
        return f"{name}, which is local to a function"
    return f"{show(value)}, which is not what its module has under that name"
