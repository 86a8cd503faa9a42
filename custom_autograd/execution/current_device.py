"""Runs a kernel with the device of its tensors as the current one, and explains tensors on several devices.

A kernel launches on the current device, whatever the device of its tensors: on another one it reads foreign memory.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.device_types import ONE_DEVICE, error_of_devices, is_about_devices, without_numbers
from custom_autograd.core.errors import CustomAutogradError, KernelError
from custom_autograd.core.lazy import PerFunction
from custom_autograd.core.messages import first_line
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.tensors import tensors_in

Function = Callable[..., Any]  # Any: takes and returns what the schema declares


def on_device() -> Callable[[Function, str | None], Function]:
    """Return what makes, of the function that serves a device type, one that runs on the device of its tensors.

    It returns the function itself if there is one device of that type: that is the current one. Whether there are
    several is asked only where there are tensors: the question may start a driver, after which a process cannot fork.
    """
    switching = PerFunction(_switching)
    return lambda function, device_type: switching(function) if _may_be_elsewhere(device_type) else function


def _switching(function: Function) -> Function:
    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        with on_device_of([*args, *kwargs.values()]):
            return function(*args, **kwargs)

    run.kernel_function = function  # type: ignore[attr-defined]  # see kernel_behind
    return run


def has_accelerator() -> bool:
    """Return True if this PyTorch may find tensors on a device other than the CPU now."""
    return torch.accelerator.current_accelerator() is not None


def are_on_the_host(values: Sequence[Any]) -> bool:  # Any: the arguments of an op
    """Return True if it is quickly seen that all tensors are on the CPU: what serves those need not look for a device.

    PyTorch that is built for CUDA may have a device elsewhere, whether there is one or not.
    """
    for value in values:
        if not (value.is_cpu if isinstance(value, Tensor) else type(value) in NUMBERS):
            return False
    return bool(values) and isinstance(values[0], Tensor)


NUMBERS = (int, float, bool, str, type(None))


def _may_be_elsewhere(device_type: str | None) -> bool:
    """Return True if tensors of a device type, or of any for None, may be on another device than the current one."""
    if device_type == "cpu":
        return False
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or device_type is None:
        return accelerator is not None
    return accelerator.type == device_type and torch.accelerator.device_count() > 1


def on_device_of(values: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Make the device of the first tensor that is on an accelerator the current one."""
    accelerator = torch.accelerator.current_accelerator()
    devices = [one.device for one in tensors_in(values)] or [one for one in values if isinstance(one, torch.device)]
    for device in devices:
        if accelerator is not None and device.type == accelerator.type and device.index is not None:
            is_current = device.index == torch.accelerator.current_device_index()
            return contextlib.nullcontext() if is_current else torch.accelerator.device_index(device.index)
    return contextlib.nullcontext()


# Explains the error of a kernel that was given tensors on several devices.
#
# The dispatcher takes such a call to the kernel of the accelerator, which may well take tensors of two devices: offsets
# on the CPU, for example. So a call is refused only if its kernel fails, and the error names the op and its arguments.
# Functions of C++ sources refuse tensors that they cannot read: see kernels/cpp.py.


def unserved(record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KernelError:
    """Return the error of a call for which there is no kernel."""
    arguments = Binder(record.declaration.schema).raw(*args, **kwargs)
    tensors = sorted(tensors_in(list(arguments.values())), key=lambda tensor: tensor.device.type == "cpu")
    kind = (tensors[0].device.type, tensors[0].layout) if tensors else (None, torch.strided)
    return _find(record, arguments, None) or record.kernels.missing(*kind)


def explain(record: OpRecord, error: Exception, arguments: Callable[[], dict[str, Any]]) -> KernelError | None:
    """Return the error to raise in place of one that a call raised; None if that is not about devices."""
    is_told = isinstance(error, CustomAutogradError) and error.op == record.name
    return None if is_told or not is_about_devices(error) else _find(record, arguments(), first_line(error))


def _find(record: OpRecord, arguments: dict[str, Any], found: str | None) -> KernelError | None:
    arguments = {name: without_numbers(value) for name, value in arguments.items()}
    return error_of_devices(record.declaration.origin(), arguments, ONE_DEVICE, found=found)
