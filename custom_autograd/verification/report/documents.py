"""The report as JSON, as Markdown, and as JUnit XML, which CI services read."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from custom_autograd.verification.report.results import (
    STATUSES,
    Result,
    Run,
    count,
    format_counts,
    format_warnings,
    run_of,
    skips_of,
    summarise,
)

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
        "run": None if run is None else dataclasses.asdict(run),
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


def format_junit(results: Sequence[Result]) -> str:
    """Return the document, with its declaration; what XML cannot hold is written as an escape of Python."""
    root = ElementTree.Element("testsuites", {"name": "custom_autograd", **_suite_counts(results)})
    for op in dict.fromkeys(result.op for result in results):
        own = [result for result in results if result.op == op]
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(op), **_suite_counts(own)})
        suite.extend(_case(result) for result in own)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite_counts(results: Sequence[Result]) -> dict[str, str]:
    return {
        "tests": str(len(results)),
        "failures": str(count(results, "failed")),
        "errors": str(count(results, "error")),
        "skipped": str(count(results, "skipped")),
        "time": _seconds(sum(result.seconds for result in results)),
    }


def _case(result: Result) -> ElementTree.Element:
    name = f"{result.check}: {result.sample}"
    attributes = {"classname": _text(result.op), "name": _text(name), "time": _seconds(result.seconds)}
    case = ElementTree.Element("testcase", attributes)
    properties = ElementTree.SubElement(case, "properties")
    for key, value in _properties(result):
        ElementTree.SubElement(properties, "property", {"name": _text(key), "value": _text(value)})
    if result.status in ELEMENTS:
        first = (result.accepted or result.message).partition("\n")[0]
        kind = "accepted" if result.accepted else result.code or result.check
        told = ElementTree.SubElement(case, ELEMENTS[result.status], {"type": _text(kind), "message": _text(first)})
        cause = f"\nwhy, probably: {result.cause}" if result.cause else ""
        told.text = _text(f"{result.message}{cause}")
    if result.script:
        ElementTree.SubElement(case, "system-out").text = _text(f"A script that shows it:\n{result.script}")
    return case


def _properties(result: Result) -> Iterable[tuple[str, str]]:
    rows = {"code": result.code, "group": result.group, "seed": str(result.seed), "cause": result.cause}
    yield from ((key, value) for key, value in rows.items() if value)
    yield from ((f"measure: {name}", f"{value:.6g}") for name, value in result.measures.items())


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _text(text: str) -> str:
    return FORBIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped: most control characters, and halves of surrogate pairs."""
