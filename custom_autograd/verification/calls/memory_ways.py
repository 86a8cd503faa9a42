"""Calls whose fresh memory holds other bytes: what no kernel writes shows in the results."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import deterministic

from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    Way,
    WrongError,
    begin,
    find_change,
    kept,
    run,
)
from custom_autograd.verification.harness.targets import Target

MEMORY = cast(Any, deterministic)  # its attribute is made when it is asked for, which type checkers cannot see


def _filled(target: Target, call: Call) -> Iterator[Outcome]:
    """Look at the values, hidden outputs included, then at the gradients."""
    still = replace(call, needs=frozenset())

    def values() -> Outcome:
        with torch.no_grad():
            return begin(target, target.full, still).detached()

    def outcome() -> Outcome:
        with contextlib.suppress(RuntimeError):  # gradients have checks of their own
            return run(target, target.call, call)
        return {}

    plain = [kept(values()), kept(outcome())]  # first: memory that is freed after it was filled comes back, with nan
    with _filled_memory():
        filled = [values(), outcome()]
    _leave_zeros(filled)
    for found, expected in zip(filled, plain, strict=True):
        _require_written(found, expected)
    _require_same_in_other_memory(lambda: {**values(), **outcome()})
    yield from ()


def _require_same_in_other_memory(function: Callable[[], Outcome]) -> None:
    """Raise if results change with the byte that new memory holds, and with nothing else."""

    def filled_with(byte: int) -> Outcome:
        with _malloc_fills(byte):
            return function()

    found, other = filled_with(FILL), filled_with(OTHER_FILL)
    difference = find_change(found, other)
    if difference is None or find_change(filled_with(FILL), found) is not None:
        return
    raise WrongError(
        f"with other bytes in new memory, {difference.message} before",
        "an element is read or returned that was never written, such as of numpy.empty or malloc",
    )


M_PERTURB = -6
"""The option of glibc's mallopt by which malloc fills new memory with a byte (its manual page, mallopt(3))."""
FILL = 0x7F
"""Four of it are 3.4e38 in float32 and 2139062143 in int32; eight are 1.4e306 in float64."""
OTHER_FILL = 0x11
CACHED = 1040
"""Bytes of the largest block that malloc, or NumPy, gives from a cache as it was left."""
BLOCKS = 8
"""More of each size than are cached."""


@functools.cache
def _libc() -> Any:  # Any: the functions of a library; None if it is not glibc
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        return None
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


@contextlib.contextmanager
def _malloc_fills(byte: int) -> Iterator[None]:
    """Make malloc fill what it returns within, and fill what is in its caches and in those of NumPy."""
    library = _libc()
    if library is None:
        yield
        return
    numpy = sys.modules.get("numpy")
    arrays = [numpy.full(size, byte, "u1") for size in range(4, CACHED, 4) for _ in range(BLOCKS)] if numpy else []
    blocks = [(library.malloc(size), size) for size in range(16, CACHED, 16) for _ in range(BLOCKS)]
    for block, size in blocks:
        ctypes.memset(block, byte, size)
    for block, _ in blocks:
        library.free(block)
    del arrays
    library.mallopt(M_PERTURB, byte ^ 0xFF)
    try:
        yield
    finally:
        library.mallopt(M_PERTURB, 0)


def _leave_zeros(outcomes: Sequence[Outcome]) -> None:
    """Free memory with zeros in the sizes of results, which the next calls that look at it get."""
    zeros = [torch.zeros_like(y) for outcome in outcomes for y in outcome.values() for _ in range(4)]
    del zeros


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    """Make torch.empty return nan, or the largest integer, within."""
    mode = torch.are_deterministic_algorithms_enabled()
    is_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    is_filling = MEMORY.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    MEMORY.fill_uninitialized_memory = True
    try:
        yield
    finally:
        MEMORY.fill_uninitialized_memory = is_filling
        torch.use_deterministic_algorithms(mode, warn_only=is_warning)


def _require_written(filled: Outcome, plain: Outcome) -> None:
    for name, one in filled.items() if plain else ():
        unwritten = _unwritten(one, plain[name])
        number = int(unwritten.sum())
        if number:
            index = [int(i) for i in unwritten.nonzero()[0]]
            raise WrongError(
                f"{name}: {number} of {one.numel()} elements are never written, the first at {index}",
                "a tail, a branch or a boundary is left out, and torch.empty does not fill",
            )


def _unwritten(filled: Tensor, plain: Tensor) -> Tensor:
    """Return where filled memory shows through; what is nan anyway is not distinguished."""
    if filled.shape != plain.shape or filled.layout != torch.strided:
        return torch.zeros_like(filled, dtype=torch.bool)
    if filled.is_floating_point() or filled.is_complex():
        return filled.isnan() & ~plain.isnan()
    if filled.dtype == torch.bool:
        return torch.zeros_like(filled)
    return (filled == torch.iinfo(filled.dtype).max) & (filled != plain)


FILLED = Way("with memory filled with nan", _filled)
