"""Runs a script or tests in a separate process for `custom-autograd check --record`, whose calls become samples.

The calls are saved to a file, from which each process that checks loads those of its op. Calls that cannot be saved,
and those of a Function that is defined within another function, are checked in the process that records them.
"""

import contextlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from custom_autograd.cli.options import SURROGATE, dtype_of, is_named, path_of
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import case_of, select_checks
from custom_autograd.verification.harness.differentiable import with_surrogate
from custom_autograd.verification.harness.packages import importable_name
from custom_autograd.verification.harness.recorder import record_calls
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.processes import running
from custom_autograd.verification.processes.process import ParentPipe
from custom_autograd.verification.processes.recorded_scripts import dump, load, run_apart, run_script
from custom_autograd.verification.report import Result
from custom_autograd.verification.report.results import Shard


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
