"""A call that differs from a sample, `Case`, and its result, `Verdict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from custom_autograd.verification.calls.backward_ways import PLAIN
from custom_autograd.verification.calls.call import Way
from custom_autograd.verification.calls.changes import COTANGENTS, LAYOUTS, NEEDS, Change
from custom_autograd.verification.calls.judge import JUMP, MOVED, NEAR, ROUNDINGS, WIDE, Fault


@dataclass(frozen=True, slots=True)
class Case:
    """A call that differs from a sample: what is changed, and how it is made."""

    changes: tuple[Change, ...] = ()
    way: Way = PLAIN

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the changes and the way, in words."""
        return (*(change.text for change in self.changes), *(() if self.way is PLAIN else (self.way.text,)))

    @property
    def is_at_jump(self) -> bool:
        """Return True if the numbers are exact, so that the reference is right even where results jump."""
        return any(change.is_at_jump for change in self.changes) and all(
            change.is_at_jump or change.stage in (LAYOUTS, NEEDS, COTANGENTS) for change in self.changes
        )

    @property
    def draws_alike(self) -> bool:
        """Return True if a call that draws random numbers draws the same numbers as the sample."""
        return self.way.draws_alike and all(change.draws_alike for change in self.changes)

    @property
    def least(self) -> float:
        """Return the share of its size by which a wrong result is off, at least."""
        if self.is_at_jump:
            return JUMP
        is_narrow = any(change.key == "dtype of one" and change.text.endswith("bfloat16") for change in self.changes)
        return OF_ONE if is_narrow else 0.0

    @property
    def is_of_large_numbers(self) -> bool:
        """Return True if derivatives of what else is changed may be but rounding."""
        return len(self.texts) > 1 and any(change.is_large for change in self.changes)

    @property
    def slack(self) -> float:
        """Return how many times further off than usual a result may be: of several changes, roundings multiply."""
        is_of_dtype = any(change.is_of_dtype for change in self.changes)  # then much is allowed already
        return OF_SEVERAL if len(self.changes) > 1 and not is_of_dtype else 1.0

    @property
    def depths(self) -> tuple[int, ...]:
        """Return what is asked of the judge, one after the other: moved numbers say nothing of a jump."""
        return (NEAR, WIDE) if self.is_at_jump else (NEAR, WIDE, MOVED)

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


def smallest(verdict: Verdict, look: Callable[[Case], Verdict]) -> Verdict:
    """Return the verdict of the case without what it does not need to be wrong."""
    for simpler in verdict.case.simpler():
        again = look(simpler)
        if again.fault is not None:
            return smallest(again, look)
    return verdict


OF_ONE = ROUNDINGS[torch.bfloat16] * torch.finfo(torch.bfloat16).eps
"""The relative error that is allowed if one tensor is in bfloat16.

An op may take the reciprocal of that tensor before it computes in float32.
"""

OF_SEVERAL = 4.0

UNFIT = "the change does not fit the call"
UNKNOWN = "the reference does not take it"
REFUSED = "the op refuses it"
OVERFLOW = "its numbers are too large for the dtype"
SPECIAL = "it only differs in what becomes of nan and inf"
DRAWS = "it draws random numbers"
LOST = "it ends the process"
