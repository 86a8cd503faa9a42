"""The judge that runs a test suite: pytest in a process of its own, in which the plugin installs the mutant.

CUSTOM_AUTOGRAD_MUTATE        which mutant: "ns::op/backward/sign"
CUSTOM_AUTOGRAD_MUTATE_WATCH  set where there are no samples: the tests show whether the mutant changes anything
CUSTOM_AUTOGRAD_MUTATE_LOG    the file to which the plugin writes a line of JSON for each thing that happens
PYTEST_ADDOPTS                loads the plugin, whatever command it is that runs pytest, and in workers of xdist
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from custom_autograd.core.errors import CheckError
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.mutation.engine import Judge, MutantStatus, MutantVerdict
from custom_autograd.verification.mutation.operators import Mutant

MUTANT = "CUSTOM_AUTOGRAD_MUTATE"
WATCH = "CUSTOM_AUTOGRAD_MUTATE_WATCH"
LOG = "CUSTOM_AUTOGRAD_MUTATE_LOG"
PLUGIN = "custom_autograd.verification.mutation.plugin"
PASSED = 0
SHORTEST_LIMIT = 60.0  # s


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """Outcome of one run of a test suite."""

    code: int
    output: str
    seconds: float
    failed: tuple[str, ...]
    statuses: tuple[MutantStatus, ...]


def command_for(paths: Sequence[str]) -> list[str]:
    """Run pytest on paths, until the first failure."""
    return [sys.executable, "-m", "pytest", "-x", "-q", *paths]


def by_tests(command: Sequence[str]) -> Judge:
    """Return the judge that runs a command.

    The tests run once as they are, before anything else; a mutant may take ten times as long.

    Raises:
        CheckError: the tests do not pass.
    """
    first = run_tests(command, None, limit=None)
    if first.code != PASSED:
        tail = "\n".join(first.output.strip().splitlines()[-15:])
        raise CheckError(f"{' '.join(command)}: it ends with {first.code} before anything is changed\n{tail}")
    limit = max(SHORTEST_LIMIT, 10 * first.seconds)

    def judge(op: object, mutant: Mutant) -> MutantVerdict:
        is_watched = target_of(op).samples is None
        return _verdict(command, mutant, run_tests(command, mutant.path, limit=limit, is_watched=is_watched))

    return judge


def run_tests(command: Sequence[str], path: str | None, *, limit: float | None, is_watched: bool = False) -> SuiteRun:
    """Run a command with a mutant, or with none.

    Args:
        command: the program and its arguments.
        path: of the mutant.
        limit: wall time, s, after which it is ended.
        is_watched: whether the right function runs next to the mutant.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        code, output = _ended(command, _environment(path, log, is_watched=is_watched), limit)
        events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    failed = tuple(dict.fromkeys(event["failed"] for event in events if "failed" in event))
    statuses: tuple[MutantStatus, ...] = tuple(event["status"] for event in events if "status" in event)
    return SuiteRun(code, output, time.perf_counter() - start, failed, statuses)


def _ended(command: Sequence[str], environment: dict[str, str], limit: float | None) -> tuple[int, str]:
    try:
        done = subprocess.run(
            list(command), env=environment, capture_output=True, text=True, errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT, f"no end after {limit:.0f} s"
    except FileNotFoundError as error:
        raise CheckError(f"{command[0]}: there is no such command") from error
    return done.returncode, done.stdout + done.stderr


def _environment(path: str | None, log: Path, *, is_watched: bool) -> dict[str, str]:
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p {PLUGIN} -p no:cacheprovider"
    changes = {"PYTEST_ADDOPTS": options.strip(), LOG: str(log), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    if path is not None:
        changes[MUTANT] = path
    if is_watched:
        changes[WATCH] = "1"
    rest = {name: value for name, value in os.environ.items() if name not in (MUTANT, WATCH)}
    return {**rest, **changes}


def _verdict(command: Sequence[str], mutant: Mutant, run: SuiteRun) -> MutantVerdict:
    if run.code == TIMED_OUT:
        return MutantVerdict(("the time limit",), run.output)
    if run.code == PASSED and not run.statuses:
        raise CheckError(f"{' '.join(command)}: no test declares {mutant.point.op}, so that nothing can be changed")
    if run.code == PASSED:
        return MutantVerdict(status=_worst(run.statuses))
    names = run.failed or (f"exit code {run.code}",)
    lines = [line for line in run.output.splitlines() if line.startswith("E ")]
    return MutantVerdict(names, lines[0].removeprefix("E ").strip() if lines else "")


def _worst(statuses: Sequence[MutantStatus]) -> MutantStatus:
    """Return the worst status of several processes; those without work from xdist see nothing."""
    for status in WORST_FIRST:
        if status in statuses:
            return status
    return "survived"


TIMED_OUT = 124
WORST_FIRST: tuple[MutantStatus, ...] = ("survived", "no change", "not reached")
