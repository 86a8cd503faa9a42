"""Condition: when a kernel may run, as a function of some of the arguments, bound by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from custom_autograd.core.errors import KernelError, KernelUnavailable
from custom_autograd.core.messages import first_line, show
from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """A function of the user's that says whether a kernel takes the arguments.

    Attributes:
        function: returns a bool, or raises KernelUnavailable with the reason (Any: what the schema says, as below).
        names: the arguments that it is called with.
        location: file:line of it.
        bind: a kernel's call -> all arguments by name, as the op's author sees them.
        op: for messages.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    location: str
    bind: Callable[..., dict[str, Any]]
    op: str

    def refusal(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return None if the kernel takes these arguments, else the reason that was given, or nothing: see `text`.

        Raises:
            KernelError: the function returns something other than a bool.
        """
        values = self.bind(*args, **kwargs)
        try:
            answer = self.function(**{name: values[name] for name in self.names})
        except KernelUnavailable as error:
            return first_line(error)
        if isinstance(answer, torch.SymBool):
            answer = bool(answer)  # a graph is guarded by it
        if type(answer) is not bool:
            problem = "the function given as when= returns no bool"
            raise KernelError(self.op, problem, expected="a bool", found=show(answer), rule=self.location)
        return None if answer else ""

    @property
    def text(self) -> str:
        """Return a phrase for messages, when the function returned False: its name, docstring and location."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        words = (inspect.getdoc(self.function) or "").partition("\n")[0].rstrip(".")
        return f"when={name} ({words + ', ' if words else ''}{self.location}) returns False"
