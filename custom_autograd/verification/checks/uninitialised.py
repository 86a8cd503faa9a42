"""Every element of a result is written: memory that torch.empty hands out is filled with nan while the op runs."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import deterministic

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.differentiable import gradients_of
from custom_autograd.verification.harness.result_names import result_names
from custom_autograd.verification.harness.targets import Target

MEMORY = cast(Any, deterministic)  # its attribute is made when it is asked for, which type checkers cannot see


class Uninitialised(Check):
    """Results with memory filled with nan against results with memory as it comes."""

    name = "uninitialised"
    code = "F11"
    group = "values"
    is_quick = True
    purpose = "no element of a result or a gradient is left unwritten"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for the values, one for the gradients."""
        state = RandomState.current()
        with torch.no_grad():
            plain = values_of(target, target.full, sample)
            state.restore()
            with _filled_memory():
                filled = values_of(target, target.full, sample)
        yield _compare(result_names(target, sample, len(plain)), filled, plain)
        try:
            state.restore()
            names, expected = gradients_of(target, sample)
            state.restore()
            with _filled_memory():
                _, found = gradients_of(target, sample)
        except (NothingToCheckError, RuntimeError):  # gradients have checks of their own
            return
        yield _compare(names, found, expected)


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


def _compare(names: Sequence[str], filled: Sequence[Tensor], plain: Sequence[Tensor]) -> Finding:
    for name, one, other in zip(names, filled, plain, strict=True):
        unwritten = _unwritten(one, other)
        number = int(unwritten.sum())
        if number:
            index = [int(i) for i in unwritten.nonzero()[0]]
            return failed(
                f"{name}: {number} of {one.numel()} elements are never written, the first at {index}",
                cause="a tail, a branch or a boundary is left out, and torch.empty does not fill",
            )
    return PASSED


def _unwritten(filled: Tensor, plain: Tensor) -> Tensor:
    """Return where filled memory shows through; what is nan anyway is not told apart."""
    if filled.shape != plain.shape or filled.layout != torch.strided:
        return torch.zeros_like(filled, dtype=torch.bool)
    if filled.is_floating_point() or filled.is_complex():
        return filled.isnan() & ~plain.isnan()
    if filled.dtype == torch.bool:
        return torch.zeros_like(filled)
    return (filled == torch.iinfo(filled.dtype).max) & (filled != plain)
