"""What one check found on one sample of one op."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "skipped", "error"]
"""passed: something was checked and holds. failed: it does not. skipped: nothing was checked, the message says why.
error: the check or the op raised."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one check on one sample of one op.

    Args:
        op: the op's name.
        check: the check's name.
        sample: the sample's label.
        status: see `Status`.
        message: why it failed, was skipped or raised; empty where it passed.
        seconds: wall time, s.
        code: the check's code.
        cause: why it failed, probably; empty if unknown.
        seed: where its random numbers began.
        script: a program that shows the failure by itself, on the smallest sample that shows it; empty otherwise.
        accepted: why a failure is accepted (`Sample.xfail`); the status is then "skipped".
        measures: numbers worth keeping by name; those called "error, <dtype>" or "error, size <n>" are drawn.
        group: the check's group.
        advice: what to change although this is not a failure; empty where nothing is.
    """

    op: str
    check: str
    sample: str
    status: Status
    message: str = ""
    seconds: float = 0.0
    code: str = ""
    cause: str = ""
    seed: int = 0
    script: str = ""
    accepted: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    group: str = ""
    advice: str = ""

    @property
    def is_finding(self) -> bool:
        """Return True if it needs an action."""
        return self.status in ("failed", "error")


@dataclass(frozen=True, slots=True)
class Skip:
    """A reason why checks of one op were skipped, with the checks, and the most samples on which one of them was."""

    op: str
    checks: tuple[str, ...]
    reason: str
    samples: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of one check on one op, counted over its samples."""

    op: str
    check: str
    passed: int
    failed: int
    skipped: int
    error: int

    @property
    def status(self) -> Status:
        """Return the worst status that occurs."""
        if self.error:
            return "error"
        if self.failed:
            return "failed"
        return "passed" if self.passed else "skipped"


def summarise(results: Iterable[Result]) -> tuple[Summary, ...]:
    """Return one summary per op and check, in the order in which they first occur."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.op, result.check), []).append(result)
    return tuple(_summary(op, check, group) for (op, check), group in groups.items())


def count(results: Sequence[Result], status: Status) -> int:
    """Return how many results have the status."""
    return sum(result.status == status for result in results)


def skips_of(results: Iterable[Result]) -> tuple[Skip, ...]:
    """Return each reason for a skip once per op, with the checks that it was given for, but for what is accepted."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for result in results:
        if result.status == "skipped" and not result.accepted:
            checks = counts.setdefault((result.op, " ".join(result.message.split())), {})
            checks[result.check] = checks.get(result.check, 0) + 1
    return tuple(Skip(op, tuple(checks), reason, max(checks.values())) for (op, reason), checks in counts.items())


def _summary(op: str, check: str, results: Sequence[Result]) -> Summary:
    counts = (count(results, status) for status in STATUSES)
    return Summary(op, check, *counts)


STATUSES: tuple[Status, ...] = ("passed", "failed", "skipped", "error")
