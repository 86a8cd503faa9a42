"""Show the results of the checks on the gallery, from the report that `custom-autograd check --json` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from custom_autograd import Report, Result
from custom_autograd.verification.report.results import summarise
from generate.markup import cell, escape, folded, table

BADGES = {"passed": "passed", "failed": "FAILED", "error": "ERROR", "skipped": "skipped", "accepted": "known"}


def read_report(path: Path) -> Report | None:
    """Return the report, or None if there is no file."""
    return Report.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def results_of(report: Report | None, op: str) -> list[Result]:
    """Return the results of one op."""
    return [] if report is None else [result for result in report.results if result.op == op]


def verdict(results: Sequence[Result]) -> str:
    """Return one line: how many checks passed, failed or were skipped."""
    statuses = [summary.status for summary in summarise(results)]
    if not statuses:
        return "not verified in this build"
    counts = {status: statuses.count(status) for status in ("failed", "error", "passed", "skipped")}
    return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def matrix(results: Sequence[Result]) -> str:
    """Return a row per check: its result, the number of samples, and the reason if it was skipped."""
    if not results:
        return "This page was built without a report of the checks."
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.group or "other", []).append(result)
    rows = [row for group, found in groups.items() for row in _rows(group, found)]
    return table(("group", "check", "result", "samples", "reason"), rows)


def findings(results: Sequence[Result]) -> str:
    """Return the messages of all failures; empty if there are none."""
    bad = [result for result in results if result.is_finding]
    parts = [f"**{result.check}**, on {escape(result.sample)}:\n\n```text\n{result.message}\n```" for result in bad]
    return folded("Findings", "\n\n".join(parts)) if parts else ""


def _rows(group: str, results: Sequence[Result]) -> list[list[str]]:
    rows = []
    for summary in summarise(results):
        own = [result for result in results if result.check == summary.check]
        is_known = any(result.accepted for result in own)
        status = "accepted" if is_known and summary.status in ("passed", "skipped") else summary.status
        badge = f'<span class="badge {status}">{BADGES[status]}</span>'
        number = f"{summary.passed} of {len(own)}"
        rows.append([group, f"`{summary.check}`", badge, number, cell(_reason(own))])
    return rows


def _reason(results: Sequence[Result]) -> str:
    """Return the reasons of skips and failures, each once."""
    texts = [result.accepted or result.message for result in results if result.status != "passed"]
    lines = dict.fromkeys(_without_folders(text) for text in texts)
    return "; ".join(escape(line) for line in lines)


def _without_folders(text: str) -> str:
    """Return the first line of a message, with absolute paths shortened to file names."""
    words = (text.splitlines() or [""])[0].split(" ")
    return " ".join(word.rpartition("/")[2] if word.startswith("/") and word.count("/") > 1 else word for word in words)
