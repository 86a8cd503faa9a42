"""What came of a mutant, and of all of them together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

MutantStatus: TypeAlias = Literal["noticed", "survived", "no change", "not reached"]
"""noticed: a test failed. survived: all passed. no change: it returns the right thing on the samples. not reached: the
samples never call the function, such as a kernel of a device that is not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one mutant.

    Args:
        op: the op's name.
        rule: which of its functions was changed.
        operator: how.
        purpose: what is wrong with such a rule: it "returns the negative".
        status: see `Fate`.
        noticed_by: the checks or tests that failed.
        message: the first thing that they said.
        seconds: wall time, s.
    """

    op: str
    rule: str
    operator: str
    purpose: str
    status: MutantStatus
    noticed_by: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0


def is_clean(outcomes: Sequence[Outcome]) -> bool:
    """Return True if every mutant that could be noticed was."""
    return not any(outcome.status == "survived" for outcome in outcomes)


def rows_of(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a table: its titles, then a line for each mutant that changes something."""
    rows: list[tuple[str, ...]] = [("op", "rule", "operator", "noticed by")]
    for outcome in outcomes:
        if outcome.status in ("noticed", "survived"):
            shown = "SURVIVED" if outcome.status == "survived" else _names(outcome.noticed_by)
            rows.append((outcome.op, outcome.rule, outcome.operator, shown))
    return rows


def _names(names: Sequence[str]) -> str:
    first = names[0] if names else "a failure without a name"
    return first if len(names) < 2 else f"{first} and {len(names) - 1} more"


def remarks_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what the table does not say: mutants without effect, what survivors do, and the counts."""
    lines = []
    for status, reason in REASONS.items():
        found: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.status == status:
                found.setdefault(f"{outcome.op}, {outcome.rule}", []).append(outcome.operator)
        lines += [f"{status}: {rule}: {', '.join(operators)} ({reason})" for rule, operators in found.items()]
    for outcome in outcomes:
        if outcome.status == "survived":
            where = f"{outcome.op}, {outcome.rule}, {outcome.operator}"
            lines.append(f"survived: {where}: no test fails where the rule {outcome.purpose}")
    counts = [(status, sum(outcome.status == status for outcome in outcomes)) for status in STATUSES]
    return [*lines, ", ".join(f"{number} {status}" for status, number in counts if number)]


def format_json(outcomes: Sequence[Outcome]) -> str:
    """Return an object with `format`, `ok`, `counts` and `mutants`."""
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES}
    document = {
        "format": 1,
        "ok": is_clean(outcomes),
        "counts": counts,
        "mutants": [asdict(outcome) for outcome in outcomes],
    }
    return json.dumps(document, indent=2) + "\n"


STATUSES: tuple[MutantStatus, ...] = ("noticed", "survived", "no change", "not reached")

REASONS: dict[MutantStatus, str] = {
    "no change": "the rule returns the same on the samples",
    "not reached": "the samples never call it",
}
