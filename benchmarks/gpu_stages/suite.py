"""Runs the project's tests that need a GPU, or look at what is there, with the pytest that is installed.

Files that import a package which is not installed are left out, and recorded so.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from processes import Ended, Job, end_jobs_on_sigterm, run_all
from stage import ROOT, Stage, environment, parsed, this_stage

TESTS = ROOT / "tests"
OF_A_GPU = re.compile(r"""mark\.cuda|is_available\(\)|["']cuda["']|cuda:\d""")
NOT_RUN = {"test_gpu.py", "test_gpu_stages.py"}  # these would run this


def main() -> None:
    """Run them, the marked ones first: each run writes its own JUnit file, and the results."""
    end_jobs_on_sigterm()
    stage, _ = this_stage()
    files = list(runnable(stage))
    runs = {"marked cuda": ["-m", "cuda"], "of files that name CUDA": ["-m", "not cuda and not slow"]}
    if stage.is_tiny:
        runs, files = {"marked cuda": ["-m", "cuda"]}, [TESTS / "faults" / "test_streams.py"]
    stage.plan(list(runs))
    for name, marks in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Path(folder) / "outcomes.jsonl"
            command = [*pytest_command(), *marks, f"--junitxml={stage.out / f'junit-{name.split()[0]}.xml'}"]
            variables = {**environment(ROOT), "GPU_TEST_OUTCOMES": str(outcomes)}
            job = Job(name, [*command, *map(str, files)], stage.seconds_left, variables)
            for ended in run_all([job], at_once=1, until=stage.until - 2):
                stage.add(name, how=ended.how, seconds=round(ended.seconds, 1), **came_to(outcomes, ended))


def pytest_command() -> list[str]:
    """Return pytest in several processes, if it can do that; plugins of others that warn would end the session."""
    several = ["-n", str(max(2, (os.cpu_count() or 1) // 3)), "--dist", "worksteal"] if is_there("xdist") else []
    plugins = ["-p", "no:benchmark", "-p", "benchmarks.gpu_stages.pytest_outcomes"]
    return [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", *plugins, *several]


def runnable(stage: Stage) -> Iterator[Path]:
    """Yield the files of tests that name CUDA; record those that cannot be imported here."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name in NOT_RUN or not OF_A_GPU.search(text):
            continue
        missing = sorted(name for name in imported_by(text) if not is_there(name))
        if missing:
            stage.add(f"left out: {path.relative_to(ROOT)}", missing=missing)
        else:
            yield path


def imported_by(text: str) -> set[str]:
    """Return the top-level packages that a file imports at its top level."""
    found = set[str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def is_there(name: str) -> bool:
    """Return True if a package is installed, or is a file of the tests."""
    if (TESTS / f"{name}.py").exists() or (TESTS / name).is_dir():
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def came_to(outcomes: Path, ended: Ended) -> dict[str, object]:
    """Return how many tests passed, failed and were skipped, and which failed; without any, what pytest printed."""
    lines = list(parsed(outcomes.read_text(encoding="utf-8"))) if outcomes.exists() else []
    failed = [f"{line['name']}: {line['message']}" for line in lines if line["outcome"] in ("failed", "not collected")]
    counts = dict(Counter(line["outcome"] for line in lines))
    return {"counts": counts, "failed": failed[:100], **({} if lines else {"last lines": ended.last_lines()})}


if __name__ == "__main__":
    main()
