"""Measures the gallery at sizes made for GPUs: a process for each file of cases, of which one at a time has the device.

Each measures the op and peers without compilation first, and torch.compile when all others are done.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from processes import Job, end_jobs_on_sigterm, run_all
from stage import BENCHMARKS, LOCK, Stage, environment, this_stage

CASES = BENCHMARKS / "gpu_cases"
WORKER = Path(__file__).with_name("gallery_worker.py")
ORDER = ("norms", "attention", "gates", "losses", "rope_and_dropout", "grouped")  # by value


def main() -> None:
    """Run a process for each file."""
    end_jobs_on_sigterm()
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true", help="time the candidates of each kernel instead")
    stage, options = this_stage(parser)
    stage.plan([f"all of {name}" for name in names()])
    jobs = [job(stage, name, ["--tune"] if options.tune else []) for name in names()]
    try:
        for ended in run_all(jobs, at_once=min(6, os.cpu_count() or 1), until=stage.until - 1):
            last = {} if ended.status == 0 else {"last lines": ended.last_lines()}
            stage.add(f"all of {ended.job.name}", how=ended.how, seconds=round(ended.seconds, 1), **last)
    finally:
        (stage.out / LOCK).unlink(missing_ok=True)


def names() -> list[str]:
    """Return the files of cases, by value."""
    found = {path.stem for path in CASES.glob("*.py")}
    return [*(name for name in ORDER if name in found), *sorted(found - set(ORDER))]


def job(stage: Stage, name: str, more: list[str]) -> Job:
    """Return the process that measures a file."""
    command = [sys.executable, str(WORKER), name, *stage.options(), *more]
    return Job(
        name,
        command,
        stage.seconds_left,
        {**environment(), "TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "2"},
    )


if __name__ == "__main__":
    main()
