"""What a machine is, as far as measurements depend on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from custom_autograd.benchmarking.devices import name_of_accelerator


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
