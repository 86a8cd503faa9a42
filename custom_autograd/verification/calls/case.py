"""A call that differs from a sample, `Case`, and its result, `Verdict`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from custom_autograd.verification.calls.backward_ways import PLAIN
from custom_autograd.verification.calls.changes import Change
from custom_autograd.verification.calls.judge import Fault
from custom_autograd.verification.calls.way import Way
from custom_autograd.verification.calls.ways import WAYS


@dataclass(frozen=True, slots=True)
class Case:
    """A call that differs from a sample: what is changed, and how it is made."""

    changes: tuple[Change, ...] = ()
    way: Way = PLAIN

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the changes and the way, in words."""
        return (*(change.text for change in self.changes), *(() if self.way is PLAIN else (self.way.text,)))

    def __str__(self) -> str:
        """Return it in words."""
        return ", ".join(self.texts) or "as given"

    def simpler(self) -> Iterator[Case]:
        """Yield what remains without one change, or without the way."""
        if self.way is not PLAIN:
            yield replace(self, way=PLAIN)
        for left_out in range(len(self.changes)):
            yield replace(self, changes=self.changes[:left_out] + self.changes[left_out + 1 :])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one case.

    Attributes:
        case: what was called, and how.
        fault: what is wrong; None if nothing is, or if nothing can be said.
        reason: why nothing can be said; empty if something was.
    """

    case: Case
    fault: Fault | None = None
    reason: str = ""

    @property
    def is_of_numbers(self) -> bool:
        """Return True if a result is wrong by its numbers."""
        return self.fault is not None and self.fault.found is not None


UNFIT = "the change does not fit the call"
UNKNOWN = "the reference does not take it"
REFUSED = "the op refuses it"
LOST = "it ends the process"


def drawn(draw: random.Random, changes: Sequence[Change], stages: Sequence[int]) -> Case:
    """Return two to four changes of different keys, and for every second case a way."""
    chosen: dict[str, Change] = {}
    for _ in range(draw.randint(2, 4)):
        stage = draw.choice(stages)
        change = draw.choice([change for change in changes if change.stage == stage])
        chosen.setdefault(change.key, change)
    way = draw.choice(WAYS) if draw.random() < 0.5 else PLAIN
    return Case(tuple(chosen.values()), way)
