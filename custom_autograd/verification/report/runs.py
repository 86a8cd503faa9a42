"""The run that a report comes from: its conditions, and the shard of the ops that it checked."""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def fields_of(run: Run) -> dict[str, object]:
    """Return the run as values of a JSON document."""
    return dataclasses.asdict(run)


def run_of(fields: Mapping[str, Any]) -> Run:  # Any: values of a JSON document
    """Return the inverse of `fields_of`; keys that are not known here are left out.

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
