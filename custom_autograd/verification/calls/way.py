"""What a way is in which a call is made, and what a way raises that sees something other than numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from custom_autograd.verification.calls.call import Call, Outcome
from custom_autograd.verification.calls.judge import Plain, results
from custom_autograd.verification.harness.targets import Target


@dataclass(frozen=True, slots=True)
class Way:
    """How a call is made.

    Attributes:
        text: what messages say.
        run: makes the call of a target, and gives outcomes, all of which should be right.
        plain: computes the same for the reference function.
        has_gradients: whether the outcomes have gradients.
        is_derivative: whether they are the derivative, and not what a rule gives in its place.
        cause: what is wrong, probably, where this way alone gives something else.
        is_owed: whether plain functions owe it too: whatever one raises then is a finding.
    """

    text: str
    run: Callable[[Target, Call], Iterator[Outcome]]
    plain: Plain = results
    has_gradients: bool = True
    is_derivative: bool = False
    cause: str = ""
    is_owed: bool = False


class WrongError(Exception):
    """Raised by a way that sees something wrong that is no number.

    Args:
        text: what is wrong.
        cause: why, probably.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause


class UnfitError(Exception):
    """Raised by a way in which a call cannot be made; its text is the reason, or empty."""
