"""How much memory and how many operations per second a machine gives: the peak of a call, and of the machine.

On a CPU that is what the process has in RAM, as Linux counts it; so the call should be the second of its kind in a
process of its own: the first one compiles, loads and makes caches. Linux counts to about a quarter of a MiB.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from custom_autograd.benchmarking.interleaved import Work
from custom_autograd.benchmarking.machine import waiting_for
from custom_autograd.torch_private.storages import allocations


def peak_memory(work: Callable[[], object], device: str = "cpu") -> int:
    """Run a function and say how much more memory there was at its peak than before it.

    Returns:
        Bytes.
    """
    gc.collect()
    if torch.device(device).type != "cpu":
        return _peak_on_device(work, torch.device(device))
    _return_what_is_free()
    _STATUS_RESET.write_text("5", encoding="ascii")  # the peak so far becomes what there is now
    before = _resident("VmRSS")
    kept = work()
    after = _resident("VmHWM")
    del kept
    return max(0, after - before)


def peak_allocation(work: Callable[[], object]) -> int:
    """Run a function and return how much more memory PyTorch had given out on the CPU at its peak than before it.

    This counts tensors and nothing else, and is the same in each run; it needs no process of its own.

    Args:
        work: runs with the profiler, which takes time.

    Returns:
        Bytes.
    """
    return max(itertools.accumulate(allocations(work), initial=0))


def _peak_on_device(work: Callable[[], object], device: torch.device) -> int:
    module, finish = torch.get_device_module(device), waiting_for(device)
    if not hasattr(module, "max_memory_allocated"):
        raise NotImplementedError(f"torch.{device.type} does not count the memory of its devices")
    finish()
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    kept = work()
    finish()
    after = module.max_memory_allocated(device)
    del kept
    return int(after - before)


def _return_what_is_free() -> None:
    """Return free memory to the system, now and when blocks of more than 64 KiB are freed."""
    c = ctypes.CDLL(None)
    if hasattr(c, "mallopt"):
        c.mallopt(_MMAP_THRESHOLD, 64 * 1024)
        c.malloc_trim(0)


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


_STATUS_RESET = Path("/proc/self/clear_refs")
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h


SIZE = 1024
"""Rows and columns of the matrices: large enough for the time of a call not to matter."""

ROUNDS = 5

DTYPES = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128})
"""The dtypes that are multiplied; for any other the peak is that of float32."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The speed of matrix products.

    Attributes:
        flops_per_second: of the fastest product.
        dtype: of the matrices.
        device: where they are.
    """

    flops_per_second: float
    dtype: torch.dtype
    device: str

    @property
    def text(self) -> str:
        """Return what it is and how it was measured."""
        figure, dtype = f"{self.flops_per_second / 1e9:.1f} GFLOP/s", str(self.dtype).removeprefix("torch.")
        return f"{figure} on {self.device}, the best of {ROUNDS} products of {SIZE} x {SIZE} {dtype} matrices"


def measure_peak(
    device: str,
    dtype: torch.dtype,
    *,
    finish: Work = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Peak:
    """Time a few products of matrices, after one that warms up."""
    chosen = dtype if dtype in DTYPES else torch.float32
    matrix = torch.ones(SIZE, SIZE, dtype=chosen, device=device)
    torch.mm(matrix, matrix)
    finish()
    times = []
    for _ in range(ROUNDS):
        start = clock()
        torch.mm(matrix, matrix)
        finish()
        times.append(clock() - start)
    return Peak(2 * SIZE**3 / min(times), chosen, device)
