"""Calls with memory that torch.empty hands out filled with nan, which shows where nothing was written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import deterministic

from custom_autograd.verification.calls.call import Call, Outcome, begin, run
from custom_autograd.verification.calls.way import Way, WrongError
from custom_autograd.verification.harness.targets import Target

MEMORY = cast(Any, deterministic)  # its attribute is made when it is asked for, which type checkers cannot see


def _filled(target: Target, call: Call) -> Iterator[Outcome]:
    """Look at the values, hidden outputs included, then at the gradients."""
    still = replace(call, needs=frozenset())
    with torch.no_grad():
        plain = begin(target, target.full, still).detached()
        with _filled_memory():
            filled = begin(target, target.full, still).detached()
    _require_written(filled, plain)
    with contextlib.suppress(RuntimeError):  # gradients have checks of their own
        plain = run(target, target.call, call)
        with _filled_memory():
            filled = run(target, target.call, call)
        _require_written(filled, plain)
    yield from ()


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
    for name, one in filled.items():
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
