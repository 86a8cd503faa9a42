"""What a machine and its devices are, as far as measurements depend on them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

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


def describe_machine() -> dict[str, str | int | None]:
    """Return CPU, cores, threads of torch, system, versions and GPU or other accelerator."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "gpu": name_of_accelerator(),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
