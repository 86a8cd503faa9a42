"""What a report says once: lines and findings that differ only in their numbers, with how many there are."""

import re
from collections.abc import Sequence
from dataclasses import replace

from custom_autograd.verification.report.results import Result

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
        kind = _kind_of(result) if result.status == "failed" else (str(position),)
        kinds.setdefault(kind, []).append(result)
    return [_with_samples(same) for same in kinds.values()]


def _folded(lines: Sequence[str]) -> list[str]:
    labels = list(dict.fromkeys(label for line in lines[1:] if (label := _split(line)[0])))
    shown = ", ".join(labels[:MOST_LABELS]) + (", ..." if len(labels) > MOST_LABELS else "")
    return [lines[0], f"  and {len(lines) - 1} more of this kind" + (f": {shown}" if shown else "")]


def _kind_of(result: Result) -> tuple[str, ...]:
    kinds = dict.fromkeys(_kind(_split(line)[1]) for line in result.message.splitlines())
    return result.op, result.check, result.cause, *kinds


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
