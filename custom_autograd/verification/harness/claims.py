"""Whether a probable cause accounts for everything that was measured: the causes of several findings, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

Explanation: TypeAlias = "Callable[[Tensor, Tensor, float], Iterator[Cause]]"
"""Found, expected and how near it has to come, relative to the largest element: yields what explains the difference."""

Claim: TypeAlias = Literal["", "factor", "mean", "offset", "precision"]
"""What a cause says of every element; empty where it describes one tensor and says nothing of others."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers that a cause is to explain.

    Args:
        found: what came.
        expected: what should have come, of the same shape.
        relative: how near an explanation has to come, relative to the largest element.
    """

    found: Tensor
    expected: Tensor
    relative: float

    def finite(self) -> Measured | None:
        """Return the numbers without those that are equal and not finite; None if others are not finite."""
        found, expected = self.found.flatten(), self.expected.flatten()
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        is_finite = found.isfinite() & expected.isfinite()
        if not bool((is_finite | is_same).all()):
            return None
        return Measured(found[is_finite], expected[is_finite], self.relative)

    def scale(self) -> float:
        """Return the size of the largest number that is expected."""
        return float(self.expected.abs().max()) if self.expected.numel() else 0.0


class Cause(str):
    """A probable cause, with what it claims of every element; empty where nothing simple explains the numbers.

    Attributes:
        claim: the kind of the claim.
        number: the factor, the offset, or the largest relative error of a rounding.
        relative: how precisely the number is known, relative to it.
        measured: the numbers that it was found for; None if it is not about numbers.
        explanation: what found it; None for a text.
    """

    claim: Claim = ""
    number: complex = 0.0
    relative: float = 0.0
    measured: Measured | None = None
    explanation: Explanation | None = None

    def accounts_for(self, other: str) -> bool:
        """Return True if the claim, applied to the numbers of another finding, gives what was found there.

        A cause that claims nothing of every element has to be found in these numbers as well.
        """
        measured = other.measured if isinstance(other, Cause) else None
        if measured is None:
            return True
        if not self.claim:
            explain = self.explanation
            return explain is None or any(explain(measured.found, measured.expected, measured.relative))
        if self.claim == "mean" and isinstance(other, Cause) and other.claim == "mean":
            return True  # over another number of elements
        finite = measured.finite()
        return finite is not None and bool((self._distance(finite) <= self._bound(finite)).all())

    def _distance(self, measured: Measured) -> Tensor:
        if self.claim == "offset":
            return (measured.found - measured.expected - self.number).abs()
        if self.claim == "precision":
            return (measured.found - measured.expected).abs()
        return (measured.found - self.number * measured.expected).abs()

    def _bound(self, measured: Measured) -> Tensor:
        if self.claim == "precision":
            return abs(self.number) * measured.expected.abs().clamp(min=LEAST_ROUNDED * measured.scale())
        sizes = measured.expected.abs() if self.claim != "offset" else 1 + 0 * measured.expected.abs()
        return measured.relative * measured.scale() + 2 * self.relative * abs(self.number) * sizes


def make_claim(text: str, claim: Claim, number: complex, relative: float) -> Cause:
    """Return a cause that applies to every element.

    Args:
        text: what reports show.
        claim: its kind.
        number: see `Cause`.
        relative: how precisely the number is known, relative to it.
    """
    cause = Cause(text)
    cause.claim, cause.number, cause.relative = claim, number, relative
    return cause


def choose_cause(causes: Sequence[str]) -> str:
    """Return the first cause that accounts for all findings.

    Args:
        causes: one for each finding; a plain text, or an empty one, is of a finding without numbers.

    Returns:
        The text; empty if there is none. Factors that differ from finding to finding are listed.
    """
    able = [cause for cause in causes if cause and (not isinstance(cause, Cause) or _holds(cause, causes))]
    return str(able[0]) if able else _differing_factors(causes)


def _differing_factors(causes: Sequence[str]) -> str:
    """Return the factors, if each finding with numbers that are not to be zero has one; empty otherwise."""
    compared = [cause for cause in causes if isinstance(cause, Cause) and not _is_of_zeros(cause)]
    if not compared or any(cause.claim not in ("factor", "mean") for cause in compared):
        return ""
    numbers = [complex(cause.number) for cause in compared]
    texts = list(dict.fromkeys(f"{x:.6g}" if x.imag else f"{x.real:.6g}" for x in numbers))
    return f"a factor that differs: {', '.join(texts[:MOST_FACTORS])}" + (", ..." if len(texts) > MOST_FACTORS else "")


def _is_of_zeros(cause: Cause) -> bool:
    return cause.measured is not None and cause.measured.scale() == 0


def _holds(cause: Cause, causes: Sequence[str]) -> bool:
    return all(cause.accounts_for(other) for other in causes)


MOST_FACTORS = 4
"""Factors that a cause lists."""

LEAST_ROUNDED = 1e-3
"""Elements that are smaller than this, relative to the largest, are what is left where terms cancel."""
