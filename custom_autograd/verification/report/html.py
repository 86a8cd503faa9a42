"""The report as one HTML page, and as a fragment for notebooks; an op as a fragment too.

The matrix has a row per op and a column per check, the checks of a group side by side.

templates/page.html       the page: style and script within, nothing is loaded from elsewhere
templates/fragment.html   the matrix and the findings
templates/op.html         what is known of an op
templates/parts.html      what they share; the style is that of every page: rendering/templates/style.css
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from custom_autograd.rendering.pages import render
from custom_autograd.verification.report import plots
from custom_autograd.verification.report.results import (
    Result,
    counts_of,
    format_counts,
    format_warnings,
    skips_of,
    summarise,
)

Kind: TypeAlias = Literal["passed", "failed", "error", "skipped", "accepted", "absent"]
"""A status, or accepted: what fails is declared to be known; absent: the check was not run on this op."""


@dataclass(frozen=True, slots=True)
class Column:
    """One check: its name, its code and its group."""

    check: str
    code: str
    group: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Outcome of one check on one op: its kind, the word that is shown, a sentence, and the number of its details."""

    kind: Kind
    label: str
    title: str
    anchor: str


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One op with a cell per column."""

    op: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows and columns; `groups` has the name of each group and how many columns it spans."""

    groups: tuple[tuple[str, int], ...]
    columns: tuple[Column, ...]
    rows: tuple[MatrixRow, ...]


def make_matrix(results: Sequence[Result]) -> Matrix:
    """Return the matrix of results; an op that was not checked at all says so in every cell."""
    columns = _columns(results)
    groups = {column.group: sum(row.group == column.group for row in columns) for column in columns}
    ops = tuple(dict.fromkeys(result.op for result in results))
    cells = _cells(results)
    absent = Cell("absent", LABELS["absent"], "was not run", "")
    rows = []
    for op in ops:
        for_all = cells.get((op, ALL_CHECKS), absent)
        rows.append(MatrixRow(op, tuple(cells.get((op, column.check), for_all) for column in columns)))
    return Matrix(tuple(groups.items()), columns, tuple(rows))


def anchors_of(results: Sequence[Result]) -> Mapping[tuple[str, str], str]:
    """Return the name of the anchor at which the details of a check on an op begin."""
    ops = list(dict.fromkeys(result.op for result in results))
    checks = list(dict.fromkeys(result.check for result in results))
    return {(row.op, row.check): f"op{ops.index(row.op)}-check{checks.index(row.check)}" for row in summarise(results)}


def _columns(results: Sequence[Result]) -> tuple[Column, ...]:
    """Return one per check, by group; groups, and checks within a group, are in the order of the run."""
    found: dict[str, Column] = {}
    for result in results:
        found.setdefault(result.check, Column(result.check, result.code, result.group or OTHER))
    columns = [column for column in found.values() if column.check != ALL_CHECKS] or list(found.values())
    order = list(dict.fromkeys(column.group for column in columns))
    return tuple(sorted(columns, key=lambda column: order.index(column.group)))


def _cells(results: Sequence[Result]) -> dict[tuple[str, str], Cell]:
    anchors = anchors_of(results)
    accepted = {(result.op, result.check) for result in results if result.accepted}
    findings: dict[tuple[str, str], str] = {}
    for number, result in enumerate(result for result in results if result.is_finding):
        findings.setdefault((result.op, result.check), f"finding{number}")
    cells = {}
    for summary in summarise(results):
        key = (summary.op, summary.check)
        kind: Kind = summary.status
        if key in accepted and kind in ("passed", "skipped"):
            kind = "accepted"
        cells[key] = Cell(kind, LABELS[kind], summary.samples, findings.get(key, anchors[key]))
    return cells


ALL_CHECKS = "all checks"
"""What the result of an op without samples calls its check."""

OTHER = "other"

LABELS: Mapping[Kind, str] = {
    "passed": "pass",
    "failed": "FAIL",
    "error": "ERROR",
    "skipped": "skip",
    "accepted": "known",
    "absent": "none",
}


ROOM = "custom_autograd.verification.report"


def format_page(results: Sequence[Result], sources: Mapping[str, str]) -> str:
    """Return the whole page; every text in it is escaped."""
    return render(
        ROOM,
        "page.html",
        **_parts(results, ""),
        plots=plots.make_plots(results),
        area=plots,
        ops=_by_check(results),
        sources=sources,
        seconds=sum(result.seconds for result in results),
        seeds=sorted({result.seed for result in results}),
    )


def format_fragment(results: Sequence[Result]) -> str:
    """Return the matrix and the findings without a page around them; the ids in it are its own."""
    return render(ROOM, "fragment.html", **_parts(results, f"ca{zlib.crc32(repr(results).encode()):08x}-"))


def format_op(
    name: str, schema: str, location: str, coverage: Mapping[str, str], kernels: Mapping[str, str], source: str
) -> str:
    """Return what is known of an op, as a fragment."""
    tables = {"capability": coverage, "kernel": kernels}
    return render(ROOM, "op.html", name=name, schema=schema, location=location, tables=tables, source=source)


def _parts(results: Sequence[Result], prefix: str) -> dict[str, object]:
    return {
        "prefix": prefix,
        "total": format_counts(results),
        "warnings": format_warnings(results),
        "counts": counts_of(results),
        "labels": LABELS,
        "matrix": make_matrix(results),
        "anchors": anchors_of(results),
        "findings": [result for result in results if result.is_finding],
        "accepted": [result for result in results if result.accepted],
        "skips": skips_of(results),
    }


def _by_check(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """Return op -> check -> its results, in the order of the run."""
    ops: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        ops.setdefault(result.op, {}).setdefault(result.check, []).append(result)
    return ops
