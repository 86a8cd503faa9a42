"""Calls that begin a process give what they give after other calls: what is kept between calls has the right key."""

from __future__ import annotations

import contextlib
import itertools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call import Outcome, run_as_taken
from custom_autograd.verification.calls.call_arguments import scalars, with_value
from custom_autograd.verification.calls.numbers import casts
from custom_autograd.verification.calls.sizes import jittered
from custom_autograd.verification.harness import settings
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.comparison import find_difference, is_same
from custom_autograd.verification.harness.sweeps import copy, free_sizes, has_arithmetic, representatives, resized
from custom_autograd.verification.harness.targets import Target

MOST_SAMPLES = 2
MOST_OF_A_SCALAR = 2
MOST_ELEMENTS = 2**20
"""In the results of one call."""
MOST_SECONDS = 1.0
"""CPU time of the calls of one sample in the other process, s."""
ROUNDED = {torch.float64: 1e-4, torch.complex128: 1e-4}
"""Part of the tolerance within which equal calls in two processes agree: memory may be aligned otherwise."""
PART = 0.1
"""The same for other dtypes."""

CAUSE = "what is kept between calls has a key that lacks what it depends on: a number, a dtype, a size, the values"
NOT_REPEATABLE = "it is not deterministic with this number, or it remembers a call"
BY = "by the same call in a process that makes these calls in another order"
OTHER_PROCESS = (
    "it compares with calls in another process, which starts where a fork is sound (Linux, isolated=True, no"
    " accelerator in use, no other thread at work)"
)

Key = tuple[str, str]
"""The call in words, and the sums of its tensors."""


@dataclass(frozen=True)
class CallOrder(Check):
    """The sample with one thing changed at a time, in a process that begins with the last change.

    Attributes:
        first: what these calls give there; None without such a process.
    """

    first: Mapping[Key, Outcome] | None = None

    name = "call_order"
    code = "F19"
    group = "values"
    most_samples = MOST_SAMPLES
    needs = ("determinism",)
    purpose = "a call gives the same first in a process as after others: nothing is kept under too short a key"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each call that the op takes in both processes."""
        if self.first is None:
            raise NothingToCheckError(OTHER_PROCESS)
        if settings.is_random(target, sample):
            raise NothingToCheckError("it draws random numbers")
        for text, changed in calls_of(target, sample):
            expected = self.first.get(_key(text, changed))
            found = None if expected is None else run_as_taken(target, changed)
            if expected is None or found is None or found.keys() != expected.keys():
                continue
            again = run_as_taken(target, changed) or found
            is_same_again = all(is_same(y, again[name]) for name, y in found.items())
            for name, y in found.items():
                other, factor = (expected, ROUNDED.get(y.dtype, PART)) if is_same_again else (again, 1.0)
                difference = find_difference([y], [other[name]], names=[name], factor=factor)
                if difference is not None:
                    by, cause = (BY, CAUSE) if is_same_again else ("by the same call again", NOT_REPEATABLE)
                    yield failed(f"{text}: {difference.message} {by}", cause=cause)
                    return
            yield PASSED


def first_calls(target: Target, samples: Sequence[Sample], seed: int) -> Iterator[tuple[Key, dict[str, torch.Tensor]]]:
    """Yield what the calls of `CallOrder` give, the last one first, in a process that has not called the op."""
    chosen = representatives([(i, one) for i, one in enumerate(samples) if one.error is None], MOST_SAMPLES)
    for _, sample in reversed(chosen):
        with settings.isolated(seed), settings.kept(), torch.inference_mode(False), torch.enable_grad():
            start = time.process_time()
            for text, changed in reversed(list(calls_of(target, sample))):
                if time.process_time() - start > MOST_SECONDS:
                    break
                found = run_as_taken(target, changed)
                if found is not None and sum(y.numel() for y in found.values()) <= MOST_ELEMENTS:
                    yield _key(text, changed), found


def calls_of(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the sample, then with other numbers, another size, other dtypes and scalars; the op is not called.

    The other process begins with the last one. Of two calls with one key that lacks a part, the later one is wrong: so
    what a change leaves as it is must not have come before it there, but for the scalars.
    """
    sample = sample.map(torch.Tensor.detach)
    changes: dict[str, Callable[[Sample], Sample | None]] = {}
    if any(map(has_arithmetic, sample.tensors())):
        changes["numbers half as large"] = lambda given: given.map(lambda x: x / 2 if has_arithmetic(x) else x)
    for size in sorted(free_sizes(sample)):
        changes[f"size {size} -> {size + 2}"] = partial(resized, sizes={size: size + 2})
    changes |= {text: cast for _, text, cast in casts(sample)}
    for name, others in itertools.groupby(scalars(target, sample), key=operator.itemgetter(0)):
        for _, other in reversed([*itertools.islice(others, MOST_OF_A_SCALAR)]):  # of -x and another one, that is last
            changes[f"{name}={other!r}"] = partial(with_value, target, name=name, value=other)
    yield "as given", copy(sample)
    for text, change in changes.items():
        with contextlib.suppress(Exception):  # an object of the call that cannot be changed
            changed = change(copy(sample))
            if changed is not None:
                yield text, changed.map(jittered) if text.startswith("size ") else changed


def _key(text: str, sample: Sample) -> Key:
    numbers = [x.detach() for x in sample.tensors() if x.layout == torch.strided and not x.is_quantized]
    return f"{text} {sample}", " ".join(str(x.to(torch.complex128).sum().item()) for x in numbers)
