"""What a check is that is a row of one table: which changes of a call, which ways to make it, and a cause.

It makes every change of its kind alone, in each of its ways, on every sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.backward_ways import PLAIN
from custom_autograd.verification.calls.call import Way
from custom_autograd.verification.calls.case import DRAWS, UNFIT, UNKNOWN, Case, Verdict
from custom_autograd.verification.calls.changes import VALUES, Change
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.harness.agreement import TO_SAY
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    skipped,
)
from custom_autograd.verification.harness.causes import find_cause
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.pace import LEFT_OUT
from custom_autograd.verification.harness.settings import is_random, where_draws_begin
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.report.results import NO_REFERENCE


class Row(Check):
    """A check of one kind of change, in some ways.

    Attributes:
        stages: the kinds of changes that are made, each alone; none for the call as it is.
        endings: how the texts of changes of numbers end that are made.
        ways: how each call is made.
        cause: what is wrong, probably, where the numbers do not say.
        tells_refusals: whether a call that the op refuses, which it may, is told.
        needs_gradients: whether there is nothing to look at without a gradient.
        asks_reference: whether only a reference is the reference; else gradients that are no derivatives on purpose
            are compared with those of the op's own plain call.
        is_of_gradients: whether gradients alone are compared.
        is_of_values: whether values alone are compared, of hidden outputs too.
        is_plain: whether a plain call of the op itself is the reference, and not its reference.
        longest: CPU seconds on one sample after which further cases are left out.
        is_ended_by_failure: whether the other cases are left out after one that fails.
        begins_plain: whether the call as it is comes first.
        is_of_changes: whether the changes are left out if the call as it is fails: the cause is another one.
        nothing: why there is no case, where a sample has none.
        why_not_random: why a sample whose calls draw random numbers is left out; empty if it is not.
        why_not_generator: the same of a sample that has a generator.
    """

    stages: ClassVar[tuple[int, ...]] = ()
    endings: ClassVar[tuple[str, ...]] = ("",)
    ways: ClassVar[tuple[Way, ...]] = (PLAIN,)
    cause: ClassVar[str] = ""
    tells_refusals: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = False
    asks_reference: ClassVar[bool] = False
    is_of_gradients: ClassVar[bool] = False
    is_of_values: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False
    longest: ClassVar[float] = math.inf
    is_ended_by_failure: ClassVar[bool] = False
    begins_plain: ClassVar[bool] = False
    is_of_changes: ClassVar[bool] = False
    nothing: ClassVar[str] = "no change fits the sample"
    why_not_random: ClassVar[str] = ""
    why_not_generator: ClassVar[str] = DRAWS

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference, where the row asks for it."""
        return NO_REFERENCE if self.asks_reference and target.reference is None else None

    def holds(self, change: Change) -> bool:
        """Return True if a change belongs to the row."""
        is_meant = change.stage != VALUES or change.text.endswith(self.endings)
        return change.stage in self.stages and is_meant and change.key != "shapes"

    def cause_of(self, verdict: Verdict) -> str:
        """Return what is wrong, probably; empty where only the way or the numbers can say."""
        del verdict
        return self.cause

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each case that fits the sample."""
        draws = is_random(target, sample)
        why_not = self.why_not_generator if has_generator(sample) else self.why_not_random if draws else ""
        if why_not:
            raise NothingToCheckError(why_not)
        looker = self._looker(target, sample, draws=draws)
        if self.needs_gradients:
            looker.require_gradients()
        if self.is_plain and looker.look(Case()).is_of_numbers:
            raise NothingToCheckError("two calls in a row with equal seeds give different results")
        cases = list(self._cases(looker))
        if not cases:
            raise NothingToCheckError(self.nothing)
        start = time.process_time()
        for position, case in enumerate(cases):
            if time.process_time() - start > self.longest:
                left = len(cases) - position
                yield skipped(f"{left} of {len(cases)} calls are left out, because the others took {self.longest:g} s")
                return
            verdict = looker.look(case)
            is_as_given = self.is_of_changes and not case.changes
            finding = finding_of(looker, verdict, "" if is_as_given else self.cause_of(verdict))
            is_told = self.tells_refusals or finding.advice or finding.status != "skipped"
            if (is_told or verdict.reason.startswith(LEFT_OUT)) and verdict.reason not in (UNFIT, UNKNOWN):
                yield finding
            if finding.status == "failed" and (self.is_ended_by_failure or is_as_given):
                return

    def _looker(self, target: Target, sample: Sample, *, draws: bool) -> Looker:
        if target.surrogates and not self.asks_reference:
            target = replace(target, reference=None)
        if self.is_of_values:
            target = replace(target, call=target.full, hidden=frozenset())
        return Looker(
            target,
            sample,
            is_plain=self.is_plain,
            state=where_draws_begin() if draws else None,
            is_thorough=False,
            is_of_gradients=self.is_of_gradients,
            is_of_values=self.is_of_values,
        )

    def _cases(self, looker: Looker) -> Iterator[Case]:
        changes: list[tuple[Change, ...]] = [()] if self.begins_plain or not self.stages else []
        changes += [(change,) for change in looker.changes() if self.holds(change)]
        for way in self.ways:
            for chosen in changes:
                yield Case(chosen, way)


class WayRow(Row):
    """A check of gradients in some ways: each gives what a plain call of the op itself gives."""

    needs_gradients = True
    is_plain = True
    why_not_generator = ""  # equal calls draw equal numbers


def finding_of(looker: Looker, verdict: Verdict, cause: str = "") -> Finding:
    """Return what is found: the case, what is wrong, by what, and why, probably."""
    fault = verdict.fault
    if fault is None:
        text = f"{verdict.case}: {verdict.reason}"
        return skipped(text, advice=text if TO_SAY in text else "") if verdict.reason else PASSED
    cause = fault.cause or cause or verdict.case.way.cause
    if fault.found is None or fault.expected is None:
        return failed(f"{verdict.case}: {fault.text}", cause=cause)
    limit = f"; off by more than {fault.allowed:.2g}" if fault.allowed else ""
    oracle = verdict.case.way.oracle if looker.is_plain else looker.judge.text
    text = f"{verdict.case}: {fault.text}, by {oracle}{limit}"
    return failed(text, cause=cause or find_cause(fault.found, fault.expected))
