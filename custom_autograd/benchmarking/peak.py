"""The peak of a machine: the most floating-point operations per second that a product of large matrices achieves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from custom_autograd.benchmarking.interleaved import Work

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
    """Time a few products of matrices, after one that warms up.

    Args:
        device: where they are computed.
        dtype: of the matrices.
        finish: runs at the end of each product, within its time: such as `torch.cuda.synchronize`.
        clock: returns the time, s.
    """
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
