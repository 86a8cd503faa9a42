"""Calls that are large enough to be shared among torch's threads give what one thread gives."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call import Outcome, find_change, run_as_taken
from custom_autograd.verification.calls.sizes import jittered
from custom_autograd.verification.harness import settings
from custom_autograd.verification.harness.agreement import is_within_domain, to_double
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.dispatching import device_type_of
from custom_autograd.verification.harness.sweeps import ascends, elements_of, free_sizes, is_index, resized, sizes_of
from custom_autograd.verification.harness.targets import Target

STEPS = tuple(2**power for power in range(10, 19, 2))
"""Elements of the largest tensor of calls that are made before the last one; what grows with a square ends early."""

MOST_SECONDS = 0.2
"""CPU time that a call four times as large, forward and backward, may be expected to take, s.

Parallel loops of torch, and `for_rows`, share out 32,768 elements at a time.
"""

THREADS, ROUNDS = 4, 8
"""On a busy machine the threads of one call may run one after the other."""

CAUSE = "threads of one loop write to the same element, or their parts are not put together"


class IntraOp(Check):
    """One size at a time made so large that a call has 262,144 elements, with one thread and with four."""

    name = "intra_op"
    code = "F20"
    group = "values"
    most_samples = 1
    needs = ("determinism",)
    purpose = "a call that torch shares among its threads gives what one thread gives, forward and backward"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each size that can be made large."""
        if device_type_of(sample) != "cpu":
            raise NothingToCheckError("torch's threads share calls on the CPU alone")
        if settings.is_random(target, sample):
            raise NothingToCheckError("it draws random numbers")
        is_any = False
        for text, large in _large_calls(target, sample):
            with settings.torch_threads(1):
                expected = _outcome(target, large)
            if expected is None:
                continue
            is_any = True
            with settings.torch_threads(THREADS):
                outcomes = (_outcome(target, large) for _ in range(ROUNDS))
                differences = (find_change(found, expected) for found in outcomes if found is not None)
                difference = next(filter(None, differences), None)
            where = f"{text}: with {THREADS} of torch's threads, {difference} with one"
            yield PASSED if difference is None else failed(where, cause=CAUSE)
        if not is_any:
            raise NothingToCheckError("no size can be made large enough, or a call would take long")


def _large_calls(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the calls with one large size that take no longer than a moment, by what smaller ones take."""
    for size in sorted(free_sizes(sample, has_judge=target.reference is not None) | _repeatable_sizes(sample)):
        per_size = max((x.numel() for x in sample.tensors() if size in x.shape), default=1) / size
        sizes = [max(2, round(elements / per_size)) for elements in STEPS]
        if all(_is_quick(target, _with_size(target, sample, size, other)) for other in sizes[:-1]):
            large = _with_size(target, sample, size, sizes[-1])
            if large is not None:
                yield f"size {size} -> {sizes[-1]}", large


def _repeatable_sizes(sample: Sample) -> frozenset[int]:
    """Return the sizes of tensors of positions, which may be repeated: no offsets, which ascend, and no lengths."""
    numbers = {value for value in (*sample.args, *sample.kwargs.values()) if type(value) is int}
    found, kept = set[int](), set(numbers)
    for x in filter(is_index, sample.tensors()):
        is_kept = ascends(x) or int(x.sum()) in sizes_of(sample) - {*x.shape}
        (kept if is_kept else found).update(x.shape)
    return frozenset(found - kept - {0, 1})


def _repeated(tensor: Tensor, size: int, other: int) -> Tensor:
    for dim, found in enumerate(tensor.shape):
        if found == size:
            tensor = tensor.index_select(dim, torch.arange(other, device=tensor.device) % size)
    return tensor


def _is_quick(target: Target, sample: Sample | None) -> bool:
    """Return True if a call four times as large would take a moment; False if the op refuses it."""
    with settings.torch_threads(1):  # others would spin while they wait
        start = time.process_time()
        is_taken = sample is not None and _outcome(target, sample) is not None
        return is_taken and 4 * (time.process_time() - start) < MOST_SECONDS


def _with_size(target: Target, sample: Sample, size: int, other: int) -> Sample | None:
    if size in _repeatable_sizes(sample):
        found = sample.map(lambda x: jittered(_repeated(x.detach(), size, other)))
    else:
        found = resized(sample, {size: other}, has_judge=target.reference is not None).map(jittered)
    return found if elements_of(found, {}) <= 2 * STEPS[-1] and is_within_domain(target, sample, found) else None


def _outcome(target: Target, sample: Sample) -> Outcome | None:
    """Return values and gradients in float64, or as far as the op takes it; None if it refuses the call."""
    return run_as_taken(target, sample.map(to_double)) or run_as_taken(target, sample)
