"""Static arguments: an importable function or class, which travels through the dispatcher as "module:qualname"."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

from custom_autograd.core.conversions import ArgumentType, optional
from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import format_message, show
from custom_autograd.core.wish import Refusal
from custom_autograd.torch_private.compiler import constant_in_graphs

HOMES = ("torch", "torch.nn.functional", "torch.special")
"""Where builtins of torch are looked for that do not say where they are from."""


def static_type(argument: str, refuse: Refusal, *, is_optional: bool) -> ArgumentType:
    """How a static argument of an op travels."""
    found = ArgumentType("str", path_of, functools.partial(_load, argument, refuse))
    return optional(found) if is_optional else found


def path_of(value: Any) -> str:  # Any: a function or class, or wrongly something else
    """The name by which a function or class can be imported, here and in any process that has its module.

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
    path = next((path for path in _candidates(value) if _find(path) is value), None)
    if path is not None:
        return path, ""
    return "", (
        f"expected a function or class that can be imported, found {_describe(value)}: define it at the top "
        "level of a module, and pass what varies as arguments of the op"
    )


def _candidates(value: Any) -> list[str]:
    """What its path may be: its own word for it, or where torch shows it."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return []
    module = getattr(value, "__module__", None) or "torch._C"
    shown = [f"{home}:{name.rpartition('.')[2]}" for home in HOMES]
    own = f"{module}:{name}"
    return [*shown, own] if own.startswith("torch._") else [own, *shown]


def _find(path: str) -> Any:  # Any: whatever has that name
    """What has a path in this process, or None; imports nothing."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _load(argument: str, refuse: Refusal, path: str) -> Any:  # Any: what was passed
    """What has a path, after importing its module if need be.

    Raises:
        KernelError: there is no such module, or nothing of that name in it.
    """
    found = _find(path)
    if found is None:
        try:
            importlib.import_module(path.partition(":")[0])
        except ImportError as error:
            raise _missing(argument, refuse, path, f"the import fails: {error}") from error
        found = _find(path)
    if found is None:
        raise _missing(argument, refuse, path, "its module has nothing of that name")
    return found


def _missing(argument: str, refuse: Refusal, path: str, reason: str) -> KernelError:
    return KernelError(
        format_message(
            refuse.op,
            f"the static argument '{argument}' names what cannot be found",
            expected="'module:name' of a function or class that can be imported in this process",
            found=f"{path!r}: {reason}",
            declared=refuse.location,
            do="make the module importable here, and keep the name in it",
        )
    )


def _describe(value: Any) -> str:
    """What stands in the way, in one phrase."""
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
