"""AroundKernels: the kernels of one op as calls run them, with what capabilities put around each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.registry import OpRecord

Function = Callable[..., Any]  # Any: takes and returns what the schema says


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
