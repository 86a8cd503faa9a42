"""The report as JSON and Markdown."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from custom_autograd.verification.report.headline import format_counts, format_warnings
from custom_autograd.verification.report.results import STATUSES, Result, count, skips_of, summarise
from custom_autograd.verification.report.runs import Run, fields_of, run_of

JSON_FORMAT = 1
"""Raised when a key of the JSON document changes its meaning or goes away; new keys do not raise it."""


def format_json(results: Sequence[Result], sources: Mapping[str, str], run: Run | None = None) -> str:
    """Return an object with `format`, `ok`, `counts` by status, `results`, `sources` and `run`.

    A result has the fields of `Result`; the run has those of `Run`, or is null if there is none.
    """
    document = {
        "format": JSON_FORMAT,
        "ok": not any(result.is_finding for result in results),
        "counts": {status: count(results, status) for status in STATUSES},
        "results": [_fields(result) for result in results],
        "sources": dict(sources),
        "run": None if run is None else fields_of(run),
    }
    return json.dumps(document, indent=2, allow_nan=False)


def parse_json(text: str) -> tuple[list[Result], dict[str, str], Run | None]:
    """Return the results, the sources and the run of a document by `format_json`; unknown keys are left out.

    Raises:
        ValueError: it is no such document, or of a format that is not known here.
    """
    document = json.loads(text)
    found = document.get("format") if isinstance(document, dict) else None
    if found != JSON_FORMAT:
        raise ValueError(f"this is not a report of format {JSON_FORMAT}: its format is {found!r}")
    if "results" not in document:
        raise ValueError(f"this is not a report of format {JSON_FORMAT}: it has no results")
    try:
        results = [_result(fields) for fields in document["results"]]
        run = document.get("run")  # documents of earlier versions have none
        return results, dict(document["sources"]), None if run is None else run_of(run)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this is not a report of format {JSON_FORMAT}: {type(error).__name__}: {error}") from error


def _result(fields: dict[str, Any]) -> Result:  # Any: values of a JSON document
    """Return the inverse of `_fields`."""
    names = {field.name for field in dataclasses.fields(Result)}
    known = {name: value for name, value in fields.items() if name in names}
    known["measures"] = {name: float(value) for name, value in fields["measures"].items()}
    if fields["status"] not in STATUSES:
        raise ValueError(f"this is not a report of format {JSON_FORMAT}: there is no status {fields['status']!r}")
    return Result(**known)


def format_markdown(results: Sequence[Result]) -> str:
    """Return a table of ops and checks, a section per finding, then advice, what is accepted and what was skipped."""
    lines = ["# Verification report", "", f"{format_counts(results)}.", ""]
    lines += [line for text in format_warnings(results) for line in (f"**Warning:** {text}.", "")]
    lines += ["| op | check | status | passed | failed | skipped | error |", "|---|---|---|---|---|---|---|"]
    for row in summarise(results):
        cells = (row.op, row.check, row.status, row.passed, row.failed, row.skipped, row.error)
        lines.append("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |")
    for result in results:
        lines += _finding(result) if result.is_finding else []
    accepted = [
        f"- {_op_and_check(row)}, on {_cell(row.sample)}: {_cell(row.accepted)}" for row in results if row.accepted
    ]
    advice = dict.fromkeys(
        f"- {_op_and_check(row)}: {_cell(row.advice)}" for row in results if row.advice and row.status != "skipped"
    )
    lines += ["", "## advice", "", *advice] if advice else []
    lines += ["", "## accepted", "", *accepted] if accepted else []
    skips = [f"- {_cell(row.op)}, {', '.join(row.checks)}: {_cell(row.reason)}" for row in skips_of(results)]
    lines += ["", "## skipped", "", *skips] if skips else []
    return "\n".join(lines) + "\n"


def _fields(result: Result) -> dict[str, object]:
    """Return the fields of a result; JSON has no infinities and no NaN, so they are strings there."""
    measures = {name: value if math.isfinite(value) else str(value) for name, value in result.measures.items()}
    return {**dataclasses.asdict(result), "measures": measures}


def _finding(result: Result) -> list[str]:
    lines = ["", f"## {result.status}: {_op_and_check(result)}, on {_cell(result.sample)}", "", *_block(result.message)]
    if result.cause:
        lines += ["", f"Why, probably: {_cell(result.cause)}"]
    if result.script:
        fence = _fence(result.script)
        lines += ["", "A script that shows it:", "", f"{fence}python", *result.script.splitlines(), fence]
    return lines


def _fence(text: str) -> str:
    """Return more backticks than there are in a row anywhere in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence


def _op_and_check(result: Result) -> str:
    return f"{_cell(result.op)}, {_cell(result.check)}"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _block(message: str) -> list[str]:
    """Return the message as an indented block, which no text in it can end."""
    return [f"    {line}" for line in message.splitlines()]
