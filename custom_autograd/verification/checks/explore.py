"""Calls that are drawn, changes of inputs times ways to call, are right: what the samples do not reach."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from custom_autograd.core.durations import seconds_in
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call_arguments import missing_optionals, with_optionals, without_optionals
from custom_autograd.verification.calls.case import DRAWS
from custom_autograd.verification.calls.drawing import named
from custom_autograd.verification.calls.exploration import Explorer
from custom_autograd.verification.calls.kernel_dtypes import in_dtypes_of_kernels
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.calls.row import finding_of
from custom_autograd.verification.harness.base import (
    Check,
    Finding,
    NothingToCheckError,
    measured,
    skipped,
)
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.settings import is_random, where_draws_begin
from custom_autograd.verification.harness.targets import Target

SECONDS = 2.0
"""CPU time that draws of all samples of an op take together at most, where no other is asked for."""


@dataclass(frozen=True)
class Explore(Check):
    """Every change and every way alone, then each two typical changes, then two to four and a way as long as is asked.

    Attributes:
        seconds: of CPU time, for all samples together, to be spent to the end; at most 2 s by default.
        left: CPU time that is left for it.
        told: the checks that looked at the sample and found nothing.
        case: the one case that is looked at, by the texts of its changes and its way.
        share: the number of samples that share the time.
        lost: the cases that end the process, which are left out: what a sample lacks, and the texts.
        missing: the optional tensors that no sample gives.
        tell: is given each case before it is looked at, in the same form.
    """

    seconds: float | None = None
    left: float = math.inf
    told: frozenset[str] = frozenset()
    case: tuple[str, ...] | None = None
    share: int = 1
    lost: tuple[tuple[str, ...], ...] = ()
    missing: frozenset[str] = frozenset()
    tell: Callable[[tuple[str, ...]], object] = tuple

    name = "explore"
    code = "F18"
    group = "values"
    most_samples = 3
    purpose = "drawn calls are right: other sizes, numbers, layouts, gradients, and ways to call, and these together"

    @property
    def asked(self) -> str:
        """Return what `checks=` calls it, with its budget."""
        return self.name if self.seconds is None else f"{self.name}={self.seconds:g}"

    @property
    def source(self) -> str:
        """Return how a script spells the check."""
        return f"Explore(case={self.case!r})"

    @classmethod
    def lasting(cls, text: str) -> Explore | None:
        """Return the check with a budget such as "90", "30s", "2m" or "1h"; None if the text is not one."""
        seconds = seconds_in(text)
        return None if seconds is None else cls(seconds)

    def among(self, target: Target, samples: Sequence[Sample]) -> Check:
        """Return the check with the time for one of these samples."""
        left_out = [missing_optionals(target, sample) for sample in samples]
        missing = left_out[0].intersection(*left_out) if left_out else frozenset[str]()
        return replace(self, share=max(1, min(len(samples), self.most_samples or 1)), missing=missing)

    def within(self, seconds: float) -> Check:
        """Return the check with half of the time that is left, if that is less than its own."""
        return replace(self, left=max(0.0, seconds / 2))

    def after(self, passed: frozenset[str]) -> Check:
        """Return the check without the cases that others have looked at."""
        return replace(self, told=passed)

    @property
    def budget(self) -> float:
        """Return the CPU time for all samples together, s."""
        return min(SECONDS if self.seconds is None else self.seconds, self.left)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for each smallest case that is wrong, or how many were drawn."""
        seed = random.getrandbits(32)  # that of the check and the sample: the runner seeds Python's numbers by it
        if has_generator(sample):
            raise NothingToCheckError(DRAWS)
        if self.case is not None:
            yield _look_again(self._looker(target, sample), self.case)
            return
        seconds = self.budget / self.share
        others = [
            *without_optionals(target, sample),
            *with_optionals(target, sample, self.missing),
            *in_dtypes_of_kernels(target, sample),
        ]
        draws = judged = 0
        for text, start in (("", sample), *others):
            looker = self._looker(target, start, text)
            explorer = Explorer(looker, seed, seconds / (1 + len(others)), is_endless=self.seconds is not None)
            is_wrong = False
            for verdict in explorer.explore():
                is_wrong = True
                finding = finding_of(looker, verdict)
                shown = replace(self, case=verdict.case.texts), start
                yield replace(finding, message=text + finding.message, shown=shown)
            if is_wrong:
                return
            draws, judged = draws + explorer.draws, judged + explorer.judged
        yield measured(draws=draws, judged=judged)

    def _looker(self, target: Target, start: Sample, text: str = "") -> Looker:
        lost = [texts[1:] for texts in self.lost if texts[0] == text]
        return Looker(
            target,
            start,
            told=frozenset() if text or self.case else self.told,
            state=where_draws_begin() if is_random(target, start) else None,
            lost=lost,
            tell=lambda texts: self.tell((text, *texts)),
        )


def _look_again(looker: Looker, texts: Sequence[str]) -> Finding:
    case = named(looker.changes(), texts)
    if case is None:
        return skipped(f"the sample has no such case: {', '.join(texts)}")
    return finding_of(looker, looker.look(case))
