"""Which calls of other sizes or numbers would take long, from what the sample takes."""

from __future__ import annotations

import contextlib
import time

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.agreement import is_within_domain, values_of
from custom_autograd.verification.harness.sweeps import growths, resized
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import fake_outputs

LEFT_OUT = "left out"
MOST_SECONDS = 5.0
"""CPU time that a call of another size may be expected to take, s: some kernels run in an interpreter."""

MOST_GROWTH = 64
"""How many times the elements of the sample a call may have, whatever the sample takes."""

MOST_ELEMENTS = 2**22
"""Of the results of a call with a large integer, which may be the length of several of their dimensions."""


class Pace:
    """Says which calls of other sizes would take long, from what the sample takes, and a call that is a little larger.

    Args:
        target: what is called.
        sample: the call that others are larger than.
    """

    def __init__(self, target: Target, sample: Sample) -> None:
        self._target, self._sample = target, sample
        self._per_element: float | None = None

    def why_not(self, variant: Sample) -> str | None:
        """Return why a call is left out, if it would take long."""
        elements = _elements(variant)
        if elements <= MOST_GROWTH * _elements(self._sample):
            return None
        if self._per_element is None:
            self._per_element = self._measured()
        return _why_not(self._per_element * elements)

    def why_not_times(self, factor: int, variant: Sample) -> str | None:
        """Return why a call is left out that may take so many times as long as the sample, or have so many results."""
        elements = _results(self._target, variant)
        if (factor * _elements(variant) if elements is None else elements) > MOST_ELEMENTS:
            return f"{LEFT_OUT}, because its results may be large"
        return _why_not(factor * (self._seconds(self._sample) or 0.0))

    def _measured(self) -> float:
        """Return the CPU time that each element more takes, s: most of a small call has nothing to do with it."""
        own = self._seconds(self._sample)
        if own is None:
            return 0.0
        for sizes in growths(self._sample):
            larger = resized(self._sample, sizes)
            seconds = self._seconds(larger) if is_within_domain(self._target, self._sample, larger) else None
            if seconds is not None:
                return (seconds - own) / (_elements(larger) - _elements(self._sample))
        return own / _elements(self._sample)

    def _seconds(self, sample: Sample) -> float | None:
        """Return the CPU time of the quicker of two, s: the first may prepare something. None if the op raises."""
        found = []
        for _ in range(2):
            begin = time.process_time()
            try:
                with kept_random_state(), torch.no_grad():
                    values_of(self._target, self._target.full, sample)
            except Exception:  # noqa: BLE001 - whatever it raises, nothing can be said of it
                return None
            found.append(time.process_time() - begin)
        return min(found)


def _why_not(seconds: float) -> str | None:
    return f"{LEFT_OUT}, because a call would take about {seconds:.0f} s" if seconds > MOST_SECONDS else None


def _results(target: Target, sample: Sample) -> int | None:
    """Return how many elements the results of a call have, which its fake kernel says; None if it does not."""
    with contextlib.suppress(Exception), torch.no_grad():  # whatever it raises, it does not say
        return _elements(Sample(*fake_outputs(target, sample)))
    return None


def _elements(sample: Sample) -> int:
    return 1 + sum(tensor.numel() for tensor in sample.tensors())
