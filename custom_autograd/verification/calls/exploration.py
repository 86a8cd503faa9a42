"""Draws calls of one sample until a budget is spent, and says of the smallest that are wrong what is wrong.

first, each change and way alone; then each two typical changes; then, if there is time, two to four and a way

A case of a seed and a sample is the same on every machine and in every run.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from custom_autograd.verification.calls.backward_ways import PLAIN
from custom_autograd.verification.calls.case import UNFIT, Case, Verdict, smallest
from custom_autograd.verification.calls.drawing import OF_FAKES, drawn, paired, singles
from custom_autograd.verification.calls.looking import Looker


@dataclass(slots=True)
class Explorer:
    """Draws calls of one sample.

    Args:
        looker: says of each whether it is right.
        seed: equal seeds draw equal cases.
        seconds: CPU time that draws may take.
        is_endless: whether it is spent to the end; else draws end when each two typical changes have met.

    Attributes:
        draws: how many there were.
        judged: of how many of them something can be said.
    """

    looker: Looker
    seed: int = 0
    seconds: float = 2.0
    is_endless: bool = False
    draws: int = field(init=False, default=0)
    judged: int = field(init=False, default=0)
    _refused: set[str] = field(init=False, default_factory=set)
    _unfit: set[str] = field(init=False, default_factory=set)
    _is_judged: bool = field(init=False, default=False)

    def explore(self) -> Iterator[Verdict]:
        """Draw until the time is spent; yield the smallest cases that are wrong, up to three of different kinds."""
        deadline, wrong = math.inf, list[frozenset[object]]()
        for case in self._cases():
            if time.process_time() > deadline or len(wrong) == MOST_KINDS:
                break
            if any(kinds & _kinds(case) or not kinds for kinds in wrong):
                continue
            verdict = self.looker.look(case)
            if not self.draws:  # for the first fake, torch imports what would take the time of the draws
                deadline = time.process_time() + self.seconds
            self.draws += 1
            self._is_judged = not verdict.reason
            self.judged += self._is_judged
            if verdict.fault is not None:
                found = smallest(verdict, self.looker.look)
                yield found
                wrong.append(_kinds(found.case))
                deadline = min(deadline, time.process_time() + LONGER)
            elif verdict.reason and len(case.changes) == 1:
                (self._unfit if verdict.reason == UNFIT else self._refused).add(case.changes[0].text)

    def _cases(self) -> Iterator[Case]:
        """Yield what is looked at, without end if that is asked; not where the sample is accepted to be wrong."""
        looker = self.looker
        changes = [change for change in looker.changes() if change.check not in looker.sample.accepted]
        draw = random.Random(f"{looker.target.name}/{self.seed}")
        for case in singles(changes):
            if not looker.is_told(case) or case.changes[0].stage in OF_FAKES:
                yield case
            elif looker.call_of(case) is None:
                self._unfit.update(case.texts)
        taken = [change for change in changes if change.text not in self._refused or change.is_switch]
        yield from paired(taken, self._unfit, draw, lambda: self._is_judged)
        if self.is_endless:
            yield from drawn(changes, draw)


MOST_KINDS = 3
"""Cases of one sample that are reported: what is wrong first may hide the rest."""

LONGER = 0.5
"""CPU seconds for another kind, after one was found."""


def _kinds(case: Case) -> frozenset[object]:
    """Return the kinds of changes of a case, and its way if that is not a plain call."""
    kinds = frozenset[object](change.stage for change in case.changes)
    return kinds if case.way is PLAIN else kinds | {case.way.text}
