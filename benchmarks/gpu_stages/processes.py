"""Runs commands in processes of their own, each with a time limit, so that a crash or a hang ends one alone."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

GRACE = 3.0  # s: for a process to end its own children


@dataclass(frozen=True)
class Job:
    """A command to run.

    Attributes:
        name: how the results name it.
        command: the program and its arguments.
        seconds: how long it may run, s.
        environment: variables besides those of this process.
    """

    name: str
    command: list[str]
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        job: which.
        status: the exit status, negative for a signal; None if it was stopped at its limit.
        output: what it wrote to stdout and stderr.
        seconds: how long it ran, s.
    """

    job: Job
    status: int | None
    output: str
    seconds: float

    @property
    def how(self) -> str:
        """Return the end in words: "ended by SIGSEGV"."""
        if self.status is None:
            return f"stopped after {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        return "ok" if self.status == 0 else f"exit status {self.status}"

    def last_lines(self, count: int = 12) -> list[str]:
        """Return the last lines of the output that are not empty."""
        return [line[:500] for line in self.output.splitlines() if line.strip()][-count:]


@dataclass(frozen=True)
class Running:
    """A job that runs."""

    job: Job
    process: subprocess.Popen[bytes]
    output: IO[Any]
    begin: float

    def ended(self, status: int | None) -> Ended:
        """Return how it ended."""
        self.output.seek(0)
        text = self.output.read().decode(errors="replace")
        self.output.close()
        return Ended(self.job, status, text, time.time() - self.begin)


def start(job: Job) -> Running:
    """Start a job in a process group of its own."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the process runs
    process = subprocess.Popen(
        job.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        env={**os.environ, **job.environment}, start_new_session=True,
    )  # fmt: skip
    return Running(job, process, output, time.time())


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: first by SIGTERM, on which a stage ends the groups of its own jobs."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, kind)
            process.wait(GRACE)


def run_all(jobs: Iterable[Job], *, at_once: int, until: float) -> Iterator[Ended]:
    """Run jobs in order and yield each when it has ended; no job is started after `until`, or runs on beyond it.

    Args:
        jobs: taken one by one, when there is room.
        at_once: how many may run at the same time.
        until: in seconds since the epoch, as `time.time()`.
    """
    waiting, running = iter(jobs), list[Running]()
    try:
        while True:
            while len(running) < at_once and time.time() < until and (job := next(waiting, None)) is not None:
                running.append(start(job))
            if not running:
                return
            for one in list(running):
                status, now = one.process.poll(), time.time()
                if status is None and now < min(until, one.begin + one.job.seconds):
                    continue
                end(one.process)  # also what a process that has ended left behind in its group
                running.remove(one)
                yield one.ended(status)
            time.sleep(0.05)
    finally:
        for one in running:
            end(one.process)


def end_jobs_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that `run_all` ends what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: exit_now())


def exit_now() -> None:
    """Raise SystemExit with the status that a shell gives for SIGTERM."""
    raise SystemExit(128 + signal.SIGTERM)
