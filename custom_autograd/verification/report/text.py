"""The report as plain text: what was found, why the rest was not looked at, then one line per op; and times.

Lines and findings that differ only in their numbers are shown once, with how many there are.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from custom_autograd.rendering.tables import align
from custom_autograd.verification.report.results import (
    UNVERIFIED,
    Result,
    Skip,
    format_counts,
    is_blind,
    skips_of,
    summarise,
)


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
    warning = f"; WARNING {UNVERIFIED}" if is_blind(results[0].op, results) else ""
    return f"{format_counts(results)}{_draws(results)}{warning}"


def _draws(results: Sequence[Result]) -> str:
    """Return how many drawn calls found nothing, and of how many of them something could be said."""
    draws, judged = (int(sum(result.measures.get(name, 0) for result in results)) for name in ("draws", "judged"))
    return f"; nothing found in {judged} of {draws} drawn calls, the others could not be judged" if draws else ""


def format_table(results: Sequence[Result]) -> str:
    """Return one line per op and check: its status, and how many samples passed, failed, were skipped or raised."""
    return align(table_rows(results))


def table_rows(results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    """Return the rows of that table, the first with the titles of the columns."""
    rows = [("op", "check", "status", "samples")]
    return rows + [(summary.op, summary.check, summary.status, summary.samples) for summary in summarise(results)]


def _findings(results: Sequence[Result]) -> list[str]:
    return [_finding(result) for result in fold_findings([result for result in results if result.is_finding])]


def _finding(result: Result) -> str:
    head = f"{result.status.upper()} {result.op}: {result.check}, on {result.sample}"
    message = result.message.splitlines()
    lines = [head, *(f"  {line}" for line in (fold_lines(message) if result.status == "failed" else message))]
    lines += [f"  why, probably: {result.cause}"] if result.cause else []
    if result.script:
        script = result.script.splitlines()
        is_cut = any(len(line) > LONGEST_LINE for line in script)
        lines.append(f"  a script that shows it{CUT if is_cut else ''}:")
        lines += [f"    {line if len(line) <= LONGEST_LINE else f'{line[:LONGEST_LINE]} ...'}" for line in script]
    return "\n".join(lines)


LONGEST_LINE = 1000
"""Characters of a line of a script; a line that writes out thousands of numbers would hide what was found."""
CUT = " (cut here; whole in what --json, --html and --junit write, and as `script` of the result)"


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


FEWEST = 3
"""Lines of one kind from which on only the first is shown."""

MOST_LABELS = 4
"""Variants that the count names."""


def fold_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines, but of each kind with several only the first, and the number and the labels of the others.

    Args:
        lines: such as "size 3 -> 4: output 0[2] = 1.5, expected 3 (ratio 0.5)"; what precedes the first ": " is the
            label of a variant. Indented lines continue others, which then stay as they are.
    """
    if any(line.startswith(" ") for line in lines):
        return list(lines)
    kinds: dict[str, list[str]] = {}
    for line in lines:
        kinds.setdefault(_kind(_split(line)[1]), []).append(line)
    return [folded for same in kinds.values() for folded in (_folded(same) if len(same) >= FEWEST else same)]


def fold_findings(results: Sequence[Result]) -> list[Result]:
    """Return the findings, but of those of one check on one op that say the same only the first, with the number.

    A crash and an exception stay as they are: their text is a stack.
    """
    kinds: dict[tuple[str, ...], list[Result]] = {}
    for position, result in enumerate(results):
        lines = dict.fromkeys(_kind(_split(line)[1]) for line in result.message.splitlines())
        kind = (result.op, result.check, result.cause, *lines) if result.status == "failed" else (str(position),)
        kinds.setdefault(kind, []).append(result)
    return [_with_samples(same) for same in kinds.values()]


def _folded(lines: Sequence[str]) -> list[str]:
    labels = list(dict.fromkeys(label for line in lines[1:] if (label := _split(line)[0])))
    shown = ", ".join(labels[:MOST_LABELS]) + (", ..." if len(labels) > MOST_LABELS else "")
    return [lines[0], f"  and {len(lines) - 1} more of this kind" + (f": {shown}" if shown else "")]


def _with_samples(same: Sequence[Result]) -> Result:
    """Return the first of findings that say the same, with what comes of the others."""
    first = same[0]
    if len(same) == 1:
        return first
    others = f"and {len(same) - 1} more sample{'s' if len(same) > 2 else ''}"
    return replace(first, sample=f"{first.sample} {others}")


def _split(line: str) -> tuple[str, str]:
    """Return the label of a line, which is empty if there is none, and what follows it."""
    label, separator, rest = line.partition(": ")
    return (label, rest) if separator and not LABELLED.search(label) else ("", line)


def _kind(text: str) -> str:
    return NUMBER.sub("#", COMPARISON.sub("", INDEX.sub("", text)))


LABELLED = re.compile(r"['\"=(]|Error$")
"""What no label has: it is a name and a number, such as "20 times as large" or "size 3 -> 4"."""

INDEX = re.compile(r"\[[\d, ]*\]")

COMPARISON = re.compile(r" \((ratio|relative error) [^)]*\)")

NUMBER = re.compile(r"[-+]?\b(\d+(\.\d+)?(e[-+]?\d+)?j?|inf|nan)\b")


LONG = 30.0
"""Seconds of a run after which a report tells how to shorten it."""

MOST_DEAREST = 5
"""Runs of a check on a sample that `--durations` lists."""

MOST_SLOW = 3
"""Checks that this names."""


def seconds_of(results: Sequence[Result]) -> list[tuple[str, float]]:
    """Return the checks that ran, the slowest first, with their seconds."""
    found: dict[str, float] = {}
    for result in results:
        found[result.check] = found.get(result.check, 0.0) + result.seconds
    return sorted(((check, seconds) for check, seconds in found.items() if seconds), key=lambda row: -row[1])


def format_durations(results: Sequence[Result]) -> str:
    """Return a table of checks and seconds, and one of the dearest runs of a check on a sample."""
    checks = align([("check", "seconds"), *((check, f"{seconds:.2f}") for check, seconds in seconds_of(results))])
    dearest = sorted((row for row in results if row.seconds), key=lambda row: -row.seconds)[:MOST_DEAREST]
    rows = [(row.op, row.check, f"{row.seconds:.2f}", row.sample + _draws_of(row)) for row in dearest]
    return f"{checks}\n\n{align([('op', 'check', 'seconds', 'sample'), *rows])}" if rows else checks


def _draws_of(result: Result) -> str:
    draws = result.measures.get("draws")
    return "" if draws is None else f", {draws:g} drawn calls"


def format_hint(results: Sequence[Result]) -> str:
    """Return how a run that took long becomes shorter; empty for other runs."""
    found = seconds_of(results)
    total = sum(seconds for _, seconds in found)
    slowest = ", ".join(f"{check} {seconds:.0f} s" for check, seconds in found[:MOST_SLOW])
    text = f"{total:.0f} s, of which {slowest}: --durations has all, --checks quick runs those that take a moment"
    return text if total > LONG else ""
