"""A plugin of pytest that appends each outcome to a file at once: for a session that is ended from outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE = "GPU_TEST_OUTCOMES"


def pytest_runtest_logreport(report: Any) -> None:
    """Append the outcome of a test; of several processes the one that reports does so."""
    if os.environ.get("PYTEST_XDIST_WORKER") or (report.outcome == "passed" and report.when != "call"):
        return
    append({"name": report.nodeid, "outcome": report.outcome, "message": message(report) if report.failed else ""})


def pytest_collectreport(report: Any) -> None:
    """Append a file that cannot be collected."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        append({"name": report.nodeid, "outcome": "not collected", "message": message(report)})


def message(report: Any) -> str:
    """Return the last lines of what a failure shows."""
    return "\n".join(str(report.longrepr).strip().splitlines()[-6:])[-600:]


def append(line: dict[str, str]) -> None:
    """Append a line."""
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
