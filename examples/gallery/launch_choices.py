"""How a Triton kernel is launched: by the first of its candidates, which a tuning run compares with the others.

The choice depends on sizes and dtypes alone, never on times that were measured while a program ran: results are the
same bits in each run, in a captured graph and in compiled code. `make gpu` times the candidates and writes a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Launch(NamedTuple):
    """The sizes of a kernel's blocks, its warps, and the stages of its loops."""

    sizes: tuple[int, ...]
    warps: int
    stages: int


# Of kernels that take each element by itself: elements of a program.
ELEMENTWISE = (Launch((2048,), 4, 1), Launch((1024,), 4, 1), Launch((4096,), 8, 1), Launch((4096,), 4, 1))

CANDIDATES: dict[str, Sequence[Launch]] = {}  # what was launched in this process, for a tuning run
FORCED: dict[str, Launch] = {}  # what a tuning run launches instead


def launch_of(kernel: str, candidates: Sequence[Launch]) -> Launch:
    """The launch of a kernel for a class of sizes, which its name says."""
    CANDIDATES[kernel] = candidates
    return FORCED.get(kernel, candidates[0])
