"""Kernels that depend on what their op declares: on which arguments it writes to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

Function = Callable[..., Any]  # Any: takes and returns what the schema says


class OpKernel(ABC):
    """A kernel of which an op registers a form of its own."""

    @abstractmethod
    def of_op(self, op: str, arguments: Sequence[str], written: Collection[str]) -> Function:
        """Return the kernel as an op calls it.

        Args:
            op: its qualified name.
            arguments: the positional arguments by name, in order; those beyond them belong to the last.
            written: the names of the arguments that the op writes to.
        """


def kernel_of_op(function: Function, op: str, arguments: Sequence[str], written: Iterable[str]) -> Function:
    """Return a function as the kernel of an op: itself, unless it is an `OpKernel`."""
    return function.of_op(op, arguments, frozenset(written)) if isinstance(function, OpKernel) else function
