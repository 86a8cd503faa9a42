"""The generated kernel at the dispatch key of each backend, and what capabilities put around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.execution import kernel_call
from custom_autograd.execution.call import share_or_copy, write_kernel
from custom_autograd.execution.kernel_call import are_new
from custom_autograd.execution.source import Source, compile_source, own_names, values_of
from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.transforms import is_transforming
from custom_autograd.values.kernel_results import ResultReader


def shared_names() -> dict[str, Any]:
    """Return the values by name (Any: functions and modules)."""
    return {
        "torch": torch,
        "Tensor": Tensor,
        "forward_ad": forward_ad,
        "is_transforming": is_transforming,
        "is_grad_enabled": torch.is_grad_enabled,
        "set_grad_enabled": guards.set_grad_enabled,
        "are_new": are_new,
    }


Function = Callable[..., Any]  # Any: takes and returns what the schema declares


class KernelCode:
    """The kernel of one op for all backends.

    Args:
        record: the op.
        watch: makes a function one whose call is checked in full, for the first call of each kind; None for none.
        is_checked: results are looked at.

    Attributes:
        source: its text.
    """

    def __init__(self, record: OpRecord, watch: Callable[[Function], Function] | None, *, is_checked: bool) -> None:
        declaration = record.declaration
        source = Source(own_names(declaration.schema, declaration.name.name))
        write_kernel(source, declaration.schema, is_checked=is_checked, is_watched=watch is not None)
        self.source = source.text
        helpers = {
            **shared_names(),
            **values_of(declaration),
            "watch": watch,
            "entry": record,
            **kernel_call.helpers(record),
            "read_result": ResultReader(declaration, record.kernels.describe, share=share_or_copy).read,
        }
        namespace = compile_source(self.source, f"{record.name} kernel", source.namespace(helpers))
        self._make: Callable[[Function], Function] = namespace[source.own("kernel_of")]
        self._made: dict[int, tuple[Function, Function]] = {}  # by id: some functions cannot be hashed

    def around(self, function: Function) -> Function:
        """Return what runs at the key of a device type that a function serves: the same for the same function."""
        found = self._made.get(id(function))
        if found is None:
            found = self._made[id(function)] = function, self._make(function)
        return found[1]


class AroundKernels:
    """Puts what capabilities say around kernels, around each once."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._found: dict[int, tuple[Function, Function]] = {}  # by id: some kernels cannot be hashed

    def __call__(self, function: Function) -> Function:
        """Return what runs in place of a kernel."""
        found = self._found.get(id(function))
        if found is None:
            wrapped = function
            for capability in overriding(self._record.capabilities, Capability.around_kernel):
                wrapped = capability.around_kernel(self._record, wrapped)
            found = self._found[id(function)] = function, wrapped
        return found[1]
