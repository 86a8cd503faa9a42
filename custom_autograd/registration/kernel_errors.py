"""What is said where kernels conflict, or where none serves a call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from custom_autograd.core.errors import KernelError, RegistrationError
from custom_autograd.core.messages import quote, suggest
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel import VARIABLE


def taken(declaration: Declaration, device_type: str | None, name: str, location: str, other: str) -> RegistrationError:
    """Return the error of two kernels of one name on one device type."""
    named = "" if name == (device_type or "default") else f" named {name!r}"
    return RegistrationError(
        str(declaration.name),
        f"device type {device_type!r} already has a kernel{named}",
        found=f"one at {other}, another at {location}",
        declared=declaration.location,
        do="pass replace=True to register_kernel if that is meant, or name= to have both",
    )


def missing(declaration: Declaration, device_type: str | None, served: Sequence[str]) -> KernelError:
    """Return the error of a call for whose device type there is no kernel."""
    return KernelError(
        str(declaration.name),
        f"there is no kernel for device type {device_type!r}",
        expected=f"tensors on {quote(served)}",
        found=repr(device_type),
        declared=declaration.location,
        do=f"register one with register_kernel({device_type!r})",
    )


def wrong_layout(declaration: Declaration, layout: torch.layout) -> KernelError:
    """Return the error of tensors that are not strided, such as sparse ones, for a kernel of a device type."""
    return KernelError(
        str(declaration.name),
        f"there is no kernel for layout {layout}: the kernel of a device type takes strided tensors",
        expected="tensors of layout torch.strided",
        found=str(layout),
        declared=declaration.location,
        do="call .to_dense(), or register_kernel(None) a kernel that takes such tensors",
    )


def unknown(
    declaration: Declaration, name: str, device_type: str | None, names: Sequence[str], elsewhere: Sequence[str]
) -> KernelError:
    """Return the error of a name that is forced, and that no kernel has, or only kernels for other device types."""
    where = "" if device_type is None else f" for device type {device_type!r}"
    register = f"{name!r} is a kernel for device type {quote(elsewhere)}; choose one of these, or register it here, too"
    return KernelError(
        str(declaration.name),
        f"there is no kernel {name!r}{where}",
        expected=quote(dict.fromkeys(names)),
        found=repr(name),
        declared=declaration.location,
        do=register if elsewhere else suggest(name, names) or "choose one of these, or register it",
    )


def declined(declaration: Declaration, name: str, reasons: Sequence[str]) -> KernelError:
    """Return the error of a forced kernel that does not accept the arguments."""
    return KernelError(
        str(declaration.name),
        f"the kernel {name!r}, which use_kernel or {VARIABLE} insists on, does not accept these arguments",
        found=("\n" + " " * 13).join(reasons),
        declared=declaration.location,
        do=f"change the arguments, leave the block of use_kernel, or unset {VARIABLE}",
    )


def none_accepts(declaration: Declaration, device_type: str | None, reasons: Sequence[str]) -> KernelError:
    """Return the error of a call that every kernel refuses, or for which none is available."""
    return KernelError(
        str(declaration.name),
        f"no kernel for device type {device_type!r} accepts these arguments",
        found=("\n" + " " * 13).join(reasons),
        declared=declaration.location,
        do="change the arguments, or register a kernel without when=, such as register_kernel(None)",
    )
