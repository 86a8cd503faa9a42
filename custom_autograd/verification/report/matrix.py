"""The op x check matrix as data: a row per op, a column per check, the checks of a group side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from custom_autograd.verification.report.results import Result, summarise

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
        counts = [f"{getattr(summary, name)} {name}" for name in ("passed", "failed", "skipped", "error")]
        title = ", ".join(text for text in counts if not text.startswith("0 "))
        cells[key] = Cell(kind, LABELS[kind], title, findings.get(key, anchors[key]))
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
