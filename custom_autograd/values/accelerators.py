"""The accelerators of this process: which are initialised, and whether what was launched on them has ended well."""

from __future__ import annotations

from types import ModuleType

import torch


def accelerators_in_use() -> list[tuple[str, ModuleType]]:
    """Return the device types besides the CPU that this process has initialised, each with torch's module for it."""
    current = torch.accelerator.current_accelerator()  # that of the build, or of an out-of-tree backend
    names = [*ACCELERATORS, *([] if current is None or current.type in ACCELERATORS else [current.type])]
    modules: list[tuple[str, ModuleType | None]] = [(name, getattr(torch, name, None)) for name in names]
    return [(name, module) for name, module in modules if module is not None and _is_in_use(module)]


def synchronize_accelerators() -> None:
    """Wait for everything that was launched.

    Raises:
        RuntimeError: if a kernel failed on its device, such as one that was given an index beyond its tensor. This
            process cannot use the device again.
    """
    for _, module in accelerators_in_use():
        if hasattr(module, "synchronize"):
            module.synchronize()


def _is_in_use(module: ModuleType) -> bool:
    """Return True if a device is initialised, or may be: `torch.mps` and some out-of-tree backends cannot say."""
    is_initialized = getattr(module, "is_initialized", None) or module.is_available
    return bool(is_initialized())


ACCELERATORS = ("cuda", "xpu", "mps", "mtia", "hpu")
