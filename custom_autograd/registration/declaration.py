"""Declaration: everything that is fixed when an op is declared, and kernels that depend on it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from custom_autograd.core.errors import Error, Origin, RegistrationError
from custom_autograd.core.option_types import check_bools
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.names import Name
from custom_autograd.schema.schema import Schema


@dataclass(frozen=True, slots=True)
class Declaration:
    """One op as it was declared.

    Attributes:
        name: its qualified name.
        schema: what it takes and returns.
        function: the decorated function: the default kernel, and the reference where `is_reference`.
        location: file:line of that function.
        device_types: the device types the function serves as kernel; None for every one.
        tags: the dispatcher tags.
        is_reference: the function is written in differentiable PyTorch operations.
        signature: of the function as its author wrote it; None if it has none, or is not what a call runs.
        tree: the containers among its arguments and results, of which the schema has only the contents; or None.
        modules: the modules one of which declares the op when it is imported.
        composition: the function calls other ops, which answer for gradients, batches and graphs; it is not a kernel.
    """

    name: Name
    schema: Schema
    function: Callable[..., Any]  # Any: an op takes and returns what its schema declares
    location: str
    device_types: tuple[str, ...] | None
    tags: tuple[torch.Tag, ...]
    is_reference: bool
    signature: inspect.Signature | None = None
    modules: tuple[str, ...] = ()
    tree: object = None  # an ArgumentTree, of a layer above, which containers/op_adapter.py reads
    composition: Callable[..., Any] | None = None  # Any: as above

    @property
    def may_draw(self) -> bool:
        """Return True if a call may draw random numbers, from torch's generator or one that it is given.

        Running it again draws others.
        """
        return self.schema.has_generator or torch.Tag.nondeterministic_seeded in self.tags

    def origin(self, rule: str | None = None) -> Origin:
        """Return what errors about the op have in common."""
        return Origin(str(self.name), self.location, rule)

    def error(self, kind: type[Error], problem: str, *, rule: str | None = None, **facts: str | None) -> Error:
        """Return an error about the op, or about one of its rules; facts as for `Origin.error`."""
        return self.origin(rule).error(kind, problem, **facts)

    def check_bools(self, **options: object) -> None:
        """Raise a RegistrationError if an option that is on or off is neither True nor False."""
        check_bools(lambda: partial(self.origin().error, RegistrationError), **options)


Function = Callable[..., Any]  # Any: takes and returns what the schema declares


class OpKernel(ABC):
    """A kernel of which an op registers a form of its own."""

    @abstractmethod
    def of_op(self, op: str, arguments: Sequence[str], written: Collection[str]) -> Function:
        """Return the kernel as an op calls it."""


def kernel_of_op(function: Function, op: str, arguments: Sequence[str], written: Iterable[str]) -> Function:
    """Return a function as the kernel of an op: itself, unless it is an `OpKernel`."""
    return function.of_op(op, arguments, frozenset(written)) if isinstance(function, OpKernel) else function
