"""What measurements ask of a device of any type: that its work has ended, and its name."""

from __future__ import annotations

from collections.abc import Callable

import torch


def waiting_for(device: str | torch.device) -> Callable[[], None]:
    """Return a function that waits until the work on a device has ended: nothing to wait for on the CPU."""
    chosen = torch.device(device)
    if chosen.type in ("cpu", "meta"):
        return lambda: None
    module = torch.get_device_module(chosen)
    if chosen.index is None or chosen.type == "mps":  # which has one device, and takes no argument
        return lambda: module.synchronize()
    return lambda: module.synchronize(chosen.index)


def name_of_accelerator() -> str | None:
    """Return the name of the accelerator that torch can use, or its device type if it has none; None without one."""
    if not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None  # it is available
    name = getattr(torch.get_device_module(accelerator), "get_device_name", None)
    return accelerator.type if name is None else str(name())
