"""Explains the error of a kernel that was given tensors on several devices.

The dispatcher takes such a call to the kernel of the accelerator, which may well take tensors of two devices: offsets
on the CPU, for example. So a call is refused only if its kernel fails, and the error names the op and its arguments.
Functions of C++ sources refuse tensors that they cannot read: see kernels/one_device.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.calls.bind import Binder
from custom_autograd.core.devices import ONE_DEVICE, error_of_devices, is_about_devices, without_numbers
from custom_autograd.core.errors import CustomAutogradError, KernelError
from custom_autograd.core.messages import first_line
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.tensors import tensors_in


class MixedDevices:
    """Explains the errors of calls of one op."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._bind = Binder(record.declaration.schema)

    def explain(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KernelError | None:
        """Return the error to raise in place of one that a kernel raised; None if that is not about devices."""
        return explain(self._record, error, lambda: self._bind.raw(*args, **kwargs))

    def unserved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KernelError:
        """Return the error of a call for which there is no kernel."""
        arguments = self._bind.raw(*args, **kwargs)
        tensors = sorted(tensors_in(list(arguments.values())), key=lambda tensor: tensor.device.type == "cpu")
        kind = (tensors[0].device.type, tensors[0].layout) if tensors else (None, torch.strided)
        return _find(self._record, arguments, None) or self._record.kernels.missing(*kind)


def explain(record: OpRecord, error: Exception, arguments: Callable[[], dict[str, Any]]) -> KernelError | None:
    """Return the error to raise in place of one that a call raised; None if that is not about devices.

    Args:
        record: of the op.
        error: from its kernel or its reference.
        arguments: returns those of the call, by name (Any: what the schema says).
    """
    is_told = isinstance(error, CustomAutogradError) and error.op == record.name
    return None if is_told or not is_about_devices(error) else _find(record, arguments(), first_line(error))


def _find(record: OpRecord, arguments: dict[str, Any], found: str | None) -> KernelError | None:
    arguments = {name: without_numbers(value) for name, value in arguments.items()}
    return error_of_devices(record.declaration.origin(), arguments, ONE_DEVICE, found=found)
