"""What was found: one result per check, sample and op, their counts, and the run that they come from."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "skipped", "error"]
"""passed: something was checked and holds. failed: it does not. skipped: nothing was checked, the message gives the
reason. error: the check or the op raised."""


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

    @property
    def samples(self) -> str:
        """Return how many samples there are of each status that occurs, such as "2 passed, 1 failed"."""
        counts = {status: getattr(self, status) for status in STATUSES}
        return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def summarise(results: Iterable[Result]) -> tuple[Summary, ...]:
    """Return one summary per op and check, in the order in which they first occur."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.op, result.check), []).append(result)
    return tuple(Summary(*key, *(count(group, status) for status in STATUSES)) for key, group in groups.items())


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


STATUSES: tuple[Status, ...] = ("passed", "failed", "skipped", "error")


NO_REFERENCE = "no reference is registered (register_reference)"
"""The reason for which a check that needs a reference is skipped."""

VERIFYING = ("kernels", "parity")
"""The checks besides `reference` that compare the values of an op with those of something else: another kernel."""


def format_counts(results: Sequence[Result]) -> str:
    """Return one line, such as "12 passed, 1 failed, 3 not looked at"."""
    words = {"skipped": "not looked at"}
    shown = [f"{number} {words.get(name, name)}" for name, number in counts_of(results).items()]
    return ", ".join(shown) or "nothing was checked"


def counts_of(results: Sequence[Result]) -> dict[str, int]:
    """Return how many results there are of each status that occurs; those that are accepted are not skipped here."""
    counts: dict[str, int] = {status: count(results, status) for status in STATUSES}
    counts["accepted"] = sum(bool(result.accepted) for result in results)
    counts["skipped"] -= counts["accepted"]
    return {name: number for name, number in counts.items() if number}


def format_warnings(results: Sequence[Result]) -> list[str]:
    """Return a warning for each op whose values nothing verifies, in the order of the ops."""
    return [f"{op}: {UNVERIFIED}" for op in dict.fromkeys(result.op for result in results) if is_blind(op, results)]


def is_blind(op: str, results: Sequence[Result]) -> bool:
    """Return True if an op has no reference, and no other check looked at its values."""
    own = [result for result in results if result.op == op]
    looked = {result.check for result in own if result.status != "skipped"}
    references = [result for result in own if result.check == "reference"]
    has_none = bool(references) and all(result.message == NO_REFERENCE for result in references)
    return has_none and not looked.intersection(VERIFYING)


UNVERIFIED = "nothing verifies its values: register_reference (or reference=True), or a second kernel"


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of the ops; each op is in exactly one.

    Args:
        number: from 1 to `count`.
        count: how many shards there are.
    """

    number: int
    count: int

    def holds(self, op: str) -> bool:
        """Return True if an op of this name is in the shard, on every machine and in every version of Python."""
        digest = hashlib.sha256(op.encode(errors="backslashreplace")).digest()
        return int.from_bytes(digest, "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of `custom-autograd check`: what determines its results, and how much of them a report has.

    Args:
        targets: the TARGETs of the command line.
        ops: the names of all ops that they declare, also of those in other shards, in the order of the report.
        checks: the names of the checks.
        device: where samples live.
        dtype: the dtype of samples; None if none was given.
        seed: where random numbers begin.
        torch: the version of PyTorch.
        custom_autograd: the version of this package.
        shard: which of the ops were checked; None for all.
        is_complete: False if Ctrl-C ended the run.
    """

    targets: tuple[str, ...]
    ops: tuple[str, ...]
    checks: tuple[str, ...]
    device: str
    dtype: str | None
    seed: int
    torch: str
    custom_autograd: str
    shard: Shard | None = None
    is_complete: bool = True

    def own_ops(self) -> tuple[str, ...]:
        """Return the names of the ops that this run checked, or reported to have no samples."""
        return tuple(op for op in self.ops if self.shard is None or self.shard.holds(op))


def run_of(fields: Mapping[str, Any]) -> Run:  # Any: values of a JSON document
    """Return the inverse of `dataclasses.asdict`; keys that are not known here are left out.

    Raises:
        KeyError: a key is missing.
        TypeError: a value has another type.
        ValueError: there is no such shard.
    """
    known = {field.name: fields[field.name] for field in dataclasses.fields(Run)}
    for name in ("targets", "ops", "checks"):
        known[name] = tuple(known[name])
    if known["shard"] is not None:
        known["shard"] = shard_of(known["shard"]["number"], known["shard"]["count"])
    return Run(**known)


def shard_of(number: int, count: int) -> Shard:
    """Return a shard.

    Raises:
        ValueError: there is no such shard.
    """
    if not 1 <= number <= count:
        raise ValueError(f"there is no shard {number}/{count}")
    return Shard(number, count)
