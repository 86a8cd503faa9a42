"""The report as plain text: what was found, why the rest was not looked at, then one line per op."""

import textwrap
from collections.abc import Sequence

from custom_autograd.rendering.tables import align
from custom_autograd.verification.report.headline import UNVERIFIED, format_counts, is_blind
from custom_autograd.verification.report.repeats import fold_findings, fold_lines
from custom_autograd.verification.report.results import STATUSES, Result, Skip, Summary, skips_of, summarise


def format_report(results: Sequence[Result]) -> str:
    """Return every finding, advice, what is accepted, why the rest was not looked at, and one line per op."""
    parts = [*_findings(results), _advice(results), _accepted(results), _skips(results), format_ops(results)]
    return "\n\n".join(part for part in parts if part)


def format_failures(results: Sequence[Result]) -> str:
    """Return every finding, then one line per op: the text of the error that is raised."""
    return "\n\n".join([*_findings(results), format_ops(results)])


def format_ops(results: Sequence[Result]) -> str:
    """Return one line per op: its counts, and whether nothing verifies its values; then the counts of all ops."""
    ops = list(dict.fromkeys(result.op for result in results))
    lines = [f"{op}: {_line([result for result in results if result.op == op])}" for op in ops]
    total = format_counts(results) if not ops else f"{len(ops)} ops: {format_counts(results)}"
    return "\n".join(lines if len(ops) == 1 else [*lines, total])


def _line(results: Sequence[Result]) -> str:
    return format_counts(results) + (f"; WARNING {UNVERIFIED}" if is_blind(results[0].op, results) else "")


def format_table(results: Sequence[Result]) -> str:
    """Return one line per op and check: its status, and how many samples passed, failed, were skipped or raised."""
    return align(table_rows(results))


def table_rows(results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    """Return the rows of that table, the first with the titles of the columns."""
    rows = [("op", "check", "status", "samples")]
    return rows + [(summary.op, summary.check, summary.status, _samples(summary)) for summary in summarise(results)]


def _samples(summary: Summary) -> str:
    counts = {status: getattr(summary, status) for status in STATUSES}
    return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def _findings(results: Sequence[Result]) -> list[str]:
    return [_finding(result) for result in fold_findings([result for result in results if result.is_finding])]


def _finding(result: Result) -> str:
    head = f"{result.status.upper()} {result.op}: {result.check}, on {result.sample}"
    message = result.message.splitlines()
    lines = [head, *(f"  {line}" for line in (fold_lines(message) if result.status == "failed" else message))]
    lines += [f"  why, probably: {result.cause}"] if result.cause else []
    if result.script:
        lines += ["  a script that shows it:", *(f"    {line}" for line in result.script.splitlines())]
    return "\n".join(lines)


def _advice(results: Sequence[Result]) -> str:
    """Return the first advice of each check on each op, with the number of samples; a skip gives it as its reason."""
    given: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.advice and result.status != "skipped":
            given.setdefault((result.op, result.check), []).append(result.advice)
    lines = [
        f"  {op}: {check}: {texts[0]}" + (f" ({len(texts)} samples)" if len(texts) > 1 else "")
        for (op, check), texts in given.items()
    ]
    return "\n".join(["advice", *lines]) if lines else ""


def _accepted(results: Sequence[Result]) -> str:
    """Return each failure that a sample declares to be known, with the reason for it and what was found."""
    lines = []
    for result in results:
        if result.accepted:
            lines.append(f"  {result.op}: {result.check}, on {result.sample}: {result.accepted}")
            lines += [f"    {line}" for line in result.message.splitlines()[1:]]
    return "\n".join(["accepted", *lines]) if lines else ""


def _skips(results: Sequence[Result]) -> str:
    """Return each reason once, with the checks and the ops that it was given for: nothing is left out in silence."""
    total = len({result.op for result in results})
    reasons: dict[str, list[Skip]] = {}
    for row in skips_of(results):
        reasons.setdefault(row.reason, []).append(row)
    lines = []
    for reason, rows in reasons.items():
        checks = dict.fromkeys(check for row in rows for check in row.checks)
        ops = dict.fromkeys(row.op for row in rows)
        named = ", ".join(ops) if len(ops) <= MOST_NAMED else f"{len(ops)} of {total} ops"
        where = f" ({named})" if len(ops) < total else ""
        lines.append(f"  {', '.join(checks)}: {textwrap.shorten(reason, MOST_SHOWN, placeholder=' ...')}{where}")
    return "\n".join(["not looked at", *lines]) if lines else ""


MOST_SHOWN = 100
"""Characters of a reason that are shown; the other formats have all of it."""

MOST_NAMED = 3
"""Ops of one reason that are named."""
