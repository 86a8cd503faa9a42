"""The smallest sample that still fails: fewer arguments, smaller sizes, rounder numbers, one greedy step at a time."""

import functools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.sweeps import resized, sizes_of

LONGEST_SEARCH = 2.0  # s; a search that is cut short still gives a sample that fails
MOST_ATTEMPTS = 60


def shrink(sample: Sample, fails: Callable[[Sample], bool]) -> Sample | None:
    """Return the smallest sample found that fails as the given one does.

    Args:
        sample: a call that fails.
        fails: whether a call fails in the same way.

    Returns:
        None if not even the given sample fails again.
    """
    if not fails(sample):
        return None
    deadline, attempts = time.perf_counter() + LONGEST_SEARCH, 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _candidates(sample):
            attempts += 1
            if attempts > MOST_ATTEMPTS or time.perf_counter() > deadline:
                return sample
            if fails(candidate):
                sample, is_smaller = candidate, True
                break
    return sample


def _candidates(sample: Sample) -> Iterator[Sample]:
    """Yield what is simpler than a sample by one step, the largest steps first."""
    for name, value in sample.kwargs.items():
        if not isinstance(value, Tensor):
            yield sample.with_arguments(sample.args, {key: row for key, row in sample.kwargs.items() if key != name})
    if all(tensor.is_floating_point() or tensor.is_complex() for tensor in sample.tensors()):
        yield from _smaller(sample)  # what an integer tensor points at must not become smaller
    for decimals in (0, 1):
        rounded = sample.map(functools.partial(_rounded, decimals=decimals))
        if _differs(rounded, sample):
            yield rounded


def _smaller(sample: Sample) -> Iterator[Sample]:
    for size in sorted(sizes_of(sample), reverse=True):
        for other in sorted({1, 2, size // 2, size - 1}):
            if 0 < other < size:
                yield resized(sample, {size: other})


def _rounded(tensor: Tensor, *, decimals: int) -> Tensor:
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        return tensor
    return tensor.detach().round(decimals=decimals).requires_grad_(tensor.requires_grad)


def _differs(one: Sample, other: Sample) -> bool:
    pairs = zip(one.tensors(), other.tensors(), strict=True)
    return any(left is not right and not torch.equal(left, right) for left, right in pairs)
