"""The report as plain, aligned text: a table of ops and checks, then what was found."""

from collections.abc import Sequence

from custom_autograd.rendering.tables import align
from custom_autograd.verification.report.headline import format_counts, format_warnings
from custom_autograd.verification.report.repeats import fold_findings, fold_lines
from custom_autograd.verification.report.results import STATUSES, Result, Summary, skips_of, summarise


def format_report(results: Sequence[Result]) -> str:
    """Return the table, every finding, what is accepted, the reasons of what was skipped, and the counts."""
    return "\n\n".join([format_table(results), format_details(results)]) if results else "nothing was checked"


def format_details(results: Sequence[Result]) -> str:
    """Return what follows the table: every finding, advice, what is accepted, the reasons of skips, and the counts."""
    parts = [*_findings(results), _advice(results), _accepted(results), _skips(results), format_headline(results)]
    return "\n\n".join(part for part in parts if part)


def format_failures(results: Sequence[Result]) -> str:
    """Return every finding, then the counts: the text of the error that is raised."""
    return "\n\n".join([*_findings(results), format_headline(results)])


def format_headline(results: Sequence[Result]) -> str:
    """Return the counts, then the ops whose values nothing verifies, one line each."""
    return "\n".join([format_counts(results), *(f"WARNING {text}" for text in format_warnings(results))])


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
    """Return each reason once, with the checks that it was given for: what was not checked is never hidden."""
    lines = [
        f"  {row.op}: {', '.join(row.checks)}: {row.reason}" + (f" ({row.samples} samples)" if row.samples > 1 else "")
        for row in skips_of(results)
    ]
    return "\n".join(["skipped", *lines]) if lines else ""
