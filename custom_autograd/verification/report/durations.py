"""How many seconds each check took, over all ops and samples."""

from collections.abc import Sequence

from custom_autograd.rendering.tables import align
from custom_autograd.verification.report.results import Result

LONG = 30.0
"""Seconds of a run after which a report tells how to shorten it."""

MOST_NAMED = 3
"""Checks that this names."""


def seconds_of(results: Sequence[Result]) -> list[tuple[str, float]]:
    """Return the checks that ran, the slowest first, with their seconds."""
    found: dict[str, float] = {}
    for result in results:
        found[result.check] = found.get(result.check, 0.0) + result.seconds
    return sorted(((check, seconds) for check, seconds in found.items() if seconds), key=lambda row: -row[1])


def format_durations(results: Sequence[Result]) -> str:
    """Return a table of checks and seconds."""
    return align([("check", "seconds"), *((check, f"{seconds:.2f}") for check, seconds in seconds_of(results))])


def format_hint(results: Sequence[Result]) -> str:
    """Return how a run that took long becomes shorter; empty for other runs."""
    found = seconds_of(results)
    total = sum(seconds for _, seconds in found)
    slowest = ", ".join(f"{check} {seconds:.0f} s" for check, seconds in found[:MOST_NAMED])
    text = f"{total:.0f} s, of which {slowest}: --durations has all, --checks quick runs those that take a moment"
    return text if total > LONG else ""
