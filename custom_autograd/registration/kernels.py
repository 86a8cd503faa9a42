"""The kernels of one op, by device type: which there are, which are switched off, which one serves a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from custom_autograd.core.errors import KernelError, RegistrationError
from custom_autograd.core.messages import format_message, quote
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private.registrations import changes


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function that computes the op on one device type.

    Attributes:
        device_type: such as "cpu"; None for the default kernel, which serves devices without their own.
        function: the function.
        location: file:line of it.
    """

    device_type: str | None
    function: Callable[..., Any]  # Any: takes and returns what the schema says
    location: str


class Kernels(Mapping["str | None", Kernel]):
    """The kernels of one op by device type; the default kernel stands under None.

    The mapping is never changed in place: readers in other threads see the old one or the new one.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._kernels: dict[str | None, Kernel] = {}
        self._disabled: dict[str, int] = {}

    def __getitem__(self, device_type: str | None) -> Kernel:
        return self._kernels[device_type]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def add(self, kernel: Kernel, *, replace: bool) -> None:
        """Adds a kernel.

        Raises:
            RegistrationError: the device type has one already, and `replace` is not meant.
        """
        taken = self._kernels.get(kernel.device_type)
        if taken is not None and not replace:
            raise RegistrationError(
                format_message(
                    str(self._declaration.name),
                    f"device type {kernel.device_type!r} already has a kernel",
                    found=f"one at {taken.location}, another at {kernel.location}",
                    declared=self._declaration.location,
                    do="pass replace=True to register_kernel if that is meant",
                )
            )
        self._kernels = {**self._kernels, kernel.device_type: kernel}
        changes.note()

    def choose(self, device_type: str | None) -> Callable[..., Any]:
        """The function that serves a device type now.

        Raises:
            KernelError: the device type has no kernel and there is no default one.
        """
        kernel = self._kernels.get(device_type)
        if kernel is not None and not (self._disabled and device_type in self._disabled):
            return kernel.function
        default = self._kernels.get(None)
        if default is not None:
            return default.function
        if kernel is not None:
            return self._declaration.function
        raise self.missing(device_type)

    def describe(self, function: Callable[..., Any]) -> str:
        """What a chosen function is, for a message: "cpu kernel k.py:12"."""
        for device_type, kernel in self._kernels.items():
            if kernel.function is function:
                return f"{device_type or 'default'} kernel, {kernel.location},"
        return f"kernel, {self._declaration.location},"

    def missing(self, device_type: str | None, layout: torch.layout = torch.strided) -> KernelError:
        """The error that says that no kernel serves a device type or a layout, and which kernels there are."""
        served = quote(str(device) for device in self._kernels if device is not None)
        if layout is not torch.strided and device_type in self._kernels:
            return KernelError(
                format_message(
                    str(self._declaration.name),
                    f"there is no kernel for layout {layout}: the kernel of a device type takes strided tensors",
                    expected="tensors of layout torch.strided",
                    found=str(layout),
                    declared=self._declaration.location,
                    do="call .to_dense(), or register_kernel(None) a kernel that takes such tensors",
                )
            )
        return KernelError(
            format_message(
                str(self._declaration.name),
                f"there is no kernel for device type {device_type!r}",
                expected=f"tensors on {served}",
                found=repr(device_type),
                declared=self._declaration.location,
                do=f"register one with register_kernel({device_type!r})",
            )
        )

    @contextmanager
    def enabled(self, device_type: str, is_enabled: bool) -> Iterator[None]:
        """Switches the kernel of a device type on or off while the context is open; contexts nest."""
        before = self._disabled
        rest = {device: 1 for device in before if device != device_type}
        self._disabled = rest if is_enabled else {**rest, device_type: 1}
        changes.note()
        try:
            yield
        finally:
            self._disabled = before
            changes.note()
