"""Selects ops and Functions with registered samples or recorded calls, for `custom-autograd check`.

With --record, a script or tests run in a separate process, whose calls become samples: they are saved to a file, from
which each process that checks loads those of its op. Calls that cannot be saved, and those of a Function that is
defined within another function, are checked in the process that records them.
"""

import argparse
import contextlib
import fnmatch
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from custom_autograd.cli.options import SURROGATE, SelectedOp, dtype_of, is_named, names_of, path_of
from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import first_line, suggest
from custom_autograd.registration import registry
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import case_of, select_checks
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.differentiable import with_surrogate
from custom_autograd.verification.harness.packages import importable_name, load_all
from custom_autograd.verification.harness.recorder import record_calls
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.processes import running
from custom_autograd.verification.processes.process import ParentPipe
from custom_autograd.verification.processes.recorded_scripts import dump, load, run_apart, run_script
from custom_autograd.verification.report import Result
from custom_autograd.verification.report.results import Shard


@dataclass(frozen=True, slots=True)
class Selection:
    """Ops and Functions that are checked.

    Attributes:
        ops: with or without samples.
        skipped: modules that cannot be imported.
        recorded: results of calls that only the process that recorded them can check.
    """

    ops: tuple[SelectedOp, ...]
    skipped: tuple[Result, ...]
    recorded: tuple[Result, ...]

    def names(self) -> tuple[str, ...]:
        """Return the names in the order of the report, those without samples last."""
        ops = [op.target.name for op in sorted(self.ops, key=lambda op: not op.has_samples)]
        return tuple(dict.fromkeys([*ops, *(result.op for result in (*self.skipped, *self.recorded))]))

    def results_of(self, shard: Shard | None) -> list[Result]:
        """Return the results in a shard; all results without shards."""
        results = (*self.skipped, *self.recorded)
        return [result for result in results if shard is None or shard.holds(result.op)]

    def describe(self) -> str:
        """Return the number of ops and Functions, and of those with samples, in words."""
        others = {result.op for result in self.recorded}
        count = len(self.ops) + len(others)
        title = "ops and Functions" if count != 1 else "op or Function"
        return f"{count} {title}, {sum(op.has_samples for op in self.ops) + len(others)} with samples"


def select_all(arguments: argparse.Namespace, checks: Sequence[Check], file: Path) -> Selection:
    """Return every op and Function that the TARGETs name.

    Args:
        arguments: of the command.
        checks: of calls that only the process that records them can check.
        file: path for recorded calls.

    Raises:
        CheckError: a TARGET is unknown, the recorded script fails, a name of --surrogate is unknown, or nothing has
            samples.
    """
    contents = [load_all(text) for text in arguments.targets]
    skipped = [
        Result(one.package, "all checks", module, "skipped", f"{module} cannot be imported: {reason}")
        for one in contents
        for module, reason in one.unimportable.items()
    ]
    recorded = [] if arguments.record is None else _record(arguments, checks, file)
    loaded = [
        (one, 0, one.alone) if found.package else (one, position, one.text)
        for found in contents
        for position, one in enumerate(found.found)
    ]
    patterns = names_of(arguments.surrogate)
    names = Counter(target_of(one.value).name for one, _, _ in loaded)
    ops = []
    for one, position, text in loaded:
        target = target_of(one.value)
        if names[target.name] > 1 and isinstance(one.value, type):
            target = replace(target, name=key_of(one.value))
        surrogate = SURROGATE if is_named(target, patterns) else None
        op = SelectedOp(text, position, one.alone, with_surrogate(target, surrogate), surrogate=surrogate)
        ops += [op] if op.has_samples else _with_calls(op, arguments.record, file)
    _require_known(patterns, ops, recorded)
    if not recorded and not any(op.has_samples for op in ops):
        raise _nothing_to_check(ops)
    return Selection(tuple(ops), tuple(skipped), tuple(recorded))


def _record(arguments: argparse.Namespace, checks: Sequence[Check], file: Path) -> list[Result]:
    """Run the script, and return the results of calls that cannot be saved."""
    return Recording(
        script=str(arguments.record),
        targets=tuple(arguments.targets),
        file=file,
        checks=tuple(check.asked for check in checks),
        device=arguments.device,
        dtype=arguments.dtype,
        seed=arguments.seed,
        seconds=arguments.seconds,
        surrogates=tuple(names_of(arguments.surrogate)),
        shard=arguments.shard,
    ).run()


def _with_calls(op: SelectedOp, script: str | None, file: Path) -> list[SelectedOp]:
    """Return an op with its recorded calls, or with the reason why it has none; None if they were checked already."""
    if registry.record_of(op.target.subject) is not None:
        return [op]  # its author registers samples
    if script is None:
        return [replace(op, reason=RECORD)]
    try:
        samples = load_samples(file, key_of(op.target.subject))
    except Exception as error:  # noqa: BLE001 - whatever unpickling its arguments raises
        reason = f"its recorded arguments cannot be loaded: {type(error).__name__}: {first_line(error)}"
        return [replace(op, reason=f"no sample: {reason}; define their classes in a package that is installed")]
    if samples is None:
        return []
    return [
        replace(op, samples=samples, file=file) if samples else replace(op, reason=NOT_CALLED.format(Path(script).name))
    ]


RECORD = "no sample: record calls with --record SCRIPT, or give some in Python: check(op, [Sample(...)])"
NOT_CALLED = (
    "no sample: call it in {}, small and with plain tensors, or give samples in Python: check(op, [Sample(...)])"
)


def _require_known(patterns: Sequence[str], ops: Sequence[SelectedOp], recorded: Sequence[Result]) -> None:
    """Raise if a name of --surrogate does not match an op or a Function."""
    others = {result.op for result in recorded}
    for pattern in patterns:
        if not any(is_named(op.target, [pattern]) for op in ops) and not fnmatch.filter(others, pattern):
            names = [op.target.name for op in ops]
            raise CheckError(
                f"--surrogate {pattern}: there is no op or Function of that name", do=suggest(pattern, names)
            )


def _nothing_to_check(ops: Sequence[SelectedOp]) -> CheckError:
    """Return the error of a run without samples, with each reason once."""
    names: dict[str, list[str]] = {}
    for op in ops:
        names.setdefault(op.reason.removeprefix("no sample: "), []).append(op.target.name)
    reasons = [f"{', '.join(rows)}: {reason}" for reason, rows in names.items()]
    return CheckError("nothing was checked, because nothing has samples\n  " + "\n  ".join(reasons))


@dataclass(frozen=True, slots=True)
class Recording:
    """Records in a separate process.

    Attributes:
        script: a script, or tests.
        targets: each TARGET whose calls are recorded.
        file: receives the calls.
        checks: names of the checks of calls that cannot be saved; the other attributes are options of these checks.
    """

    script: str
    targets: tuple[str, ...]
    file: Path
    checks: tuple[str, ...]
    device: str
    dtype: str | None
    seed: int
    seconds: float | None
    surrogates: tuple[str, ...]
    shard: Shard | None

    def run(self) -> list[Result]:
        """Start the process, and return the results of calls that it cannot save.

        Raises:
            CheckError: if the process dies, or the script raises.
        """
        messages = run_apart(self, f"--record {self.script}")
        return [message for message in messages if isinstance(message, Result)]

    def __call__(self, line: ParentPipe) -> None:
        """Record in this process, and send the results of calls that cannot be saved."""
        with contextlib.ExitStack() as stack:
            recorded = [stack.enter_context(record_calls(text)) for text in self.targets]
            run_script(self.script)
        saved: dict[str, bytes] = {}
        for value, samples in [row for calls in recorded for row in calls.items() if row[1]]:
            is_local = isinstance(value, type) and importable_name(value) is None
            try:
                saved[key_of(value)] = b"" if is_local else dump(samples)
            except Exception:  # noqa: BLE001 - an object of any class, which cannot be sent to another process
                saved[key_of(value)] = b""
            if not saved[key_of(value)]:
                self._check(value, samples, line)
        self.file.write_bytes(pickle.dumps(saved))

    def _check(self, value: object, samples: Sequence[Sample], line: ParentPipe) -> None:
        """Check a Function or an op where it was recorded."""
        target = replace(target_of(value), name=key_of(value))
        if self.shard is not None and not self.shard.holds(target.name):
            return
        target = with_surrogate(target, SURROGATE if is_named(target, self.surrogates) else None)
        dtype = dtype_of(self.dtype)
        case = case_of(target, samples, device=self.device, dtype=dtype, seed=self.seed, seconds=self.seconds)
        for result in running.run(case, select_checks(self.checks), seed=self.seed).results:
            line(result)


def key_of(value: object) -> str:
    """Return the name under which the calls of a Function or an op are saved."""
    return path_of(value) if isinstance(value, type) else target_of(value).name


def load_samples(file: Path, key: str) -> tuple[Sample, ...] | None:
    """Return the saved calls of a Function or an op; None if it was checked where they were recorded."""
    saved = pickle.loads(file.read_bytes())
    if key not in saved:
        return ()
    return tuple(load(saved[key])) if saved[key] else None
