"""custom-autograd check --record: a script, or tests, run in a process of their own; their calls become samples.

The calls are saved to a file, from which each process that checks loads those of its op. Calls that cannot be saved,
and those of a Function that is defined within another function, are checked in the process that records them.
"""

import contextlib
import importlib.util
import io
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from custom_autograd.cli.options import SURROGATE, dtype_of, is_named, path_of
from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import first_line
from custom_autograd.kernels.compilers import end_of
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import case_of, select_checks
from custom_autograd.verification.harness.differentiable import with_surrogate
from custom_autograd.verification.harness.packages import importable_name
from custom_autograd.verification.harness.recorder import record_calls
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.processes import running
from custom_autograd.verification.processes.process import ParentPipe, listen, started
from custom_autograd.verification.report import Result
from custom_autograd.verification.report.results import Shard


@dataclass(frozen=True, slots=True)
class Recording:
    """A process that records.

    Attributes:
        script: a script, or tests.
        targets: what it calls.
        file: where the calls are saved.
        checks: of calls that cannot be saved, with the options that follow.
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
            CheckError: the process dies, or the script raises.
        """
        heard: list[object] = []
        with started(self) as child:
            ending = listen(child, heard.append)
        problem = next((message for message in heard if isinstance(message, str)), "")
        if ending.exit_code is not None:
            problem = str(ending.error or f"its process {end_of(ending.exit_code)}\n{ending.trace}").strip()
        if problem:
            raise CheckError(f"--record {self.script}", problem, do="correct it, and run it again")
        return [message for message in heard if isinstance(message, Result)]

    def __call__(self, line: ParentPipe) -> None:
        """Record in the process that calls this; send results, or what is wrong with the script."""
        os.dup2(2, 1)  # what is printed here must not become part of the report
        with contextlib.ExitStack() as stack:
            recorded = [stack.enter_context(record_calls(text)) for text in self.targets]
            problem = run_tests(self.script) if is_tests(self.script) else run_script(self.script)
        if problem:
            line(problem)
            return
        saved: dict[str, bytes] = {}
        for value, samples in [row for calls in recorded for row in calls.items() if row[1]]:
            is_local = isinstance(value, type) and importable_name(value) is None
            try:
                saved[key_of(value)] = b"" if is_local else _dump(samples)
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


def _dump(samples: Sequence[Sample]) -> bytes:
    """Return samples as bytes.

    Raises:
        Exception: if an argument cannot be pickled.
    """
    stream = io.BytesIO()
    torch.save(samples, stream)
    return stream.getvalue()


def load_samples(file: Path, key: str) -> tuple[Sample, ...] | None:
    """Return the saved calls of a Function or an op; None if it was checked where they were recorded."""
    saved = pickle.loads(file.read_bytes())
    if key not in saved:
        return ()
    return tuple(torch.load(io.BytesIO(saved[key]), weights_only=False)) if saved[key] else None


def is_tests(path: str) -> bool:
    """Return True if pytest is to run a path: a folder, a file called test_*.py, or one test in it."""
    file = Path(path.partition("::")[0])
    return file.is_dir() or file.name.startswith("test_") or "::" in path


def run_script(path: str) -> str:
    """Run a script as Python does, and return what is wrong with it."""
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        return "" if error.code in (None, 0) else f"it exits with {error.code!r}"
    except Exception as error:  # noqa: BLE001 - a script may raise anything
        traceback.print_exc()
        return f"it raises {type(error).__name__}: {first_line(error)}"
    return ""


def run_tests(path: str) -> str:
    """Run tests with pytest in this process, and return why none ran; tests that fail are no problem here."""
    import pytest  # only a test suite has it

    is_parallel = importlib.util.find_spec("xdist") is not None
    code = pytest.main([path, "-q", "-p", "no:cacheprovider", *(["-n0"] if is_parallel else [])])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return ""
    return f"pytest ends with {pytest.ExitCode(code).name}"
