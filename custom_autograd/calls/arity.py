"""Refuse surplus positional arguments of a call as Python does, but for the handle, which Python would count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from typing import Any, NoReturn

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def refuse_more(name: str, parameters: Iterable[tuple[Any, bool]]) -> Callable[[Sequence[Any]], NoReturn]:
    """Return what raises TypeError for further positional arguments.

    Args:
        name: of the op.
        parameters: kind of each, and whether it has a default (Any: the kinds of inspect.Parameter).
    """
    with_default = [has_default for kind, has_default in parameters if kind in POSITIONAL]
    most, least = len(with_default), with_default.count(False)

    def refuse(more: Sequence[Any]) -> NoReturn:  # Any: whatever was given
        count = f"from {least} to {most}" if least < most else str(most)
        plural = "" if most == 1 and least == most else "s"
        given = most + len(more)
        raise TypeError(f"{name}() takes {count} positional argument{plural} but {given} were given")

    return refuse
