"""What a terminal gets that a file does not: colour, and a progress bar. rich is optional; without it text is plain."""

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from custom_autograd.verification.report import Result
from custom_autograd.verification.report.text import format_report, format_table, table_rows

STYLES = {"passed": "green", "failed": "bold red", "FAILED": "bold red", "error": "bold yellow", "ERROR": "bold yellow"}


def print_report(text: str, stream: TextIO) -> None:
    """Print a report, coloured on a terminal unless NO_COLOR is set."""
    if not _is_rich(stream):
        print(text, file=stream)
        return
    from rich.console import Console  # optional
    from rich.text import Text  # optional

    styled = Text(text)
    for word, style in STYLES.items():
        styled.highlight_regex(rf"\b{word}\b", style)
    Console(file=stream, soft_wrap=True).print(styled)


def print_results(results: Sequence[Result], stream: TextIO, *, is_verbose: bool) -> None:
    """Print a report; before it the table of ops and checks, if asked for."""
    if is_verbose and results:
        _print_checks(results, stream)
    print_report(format_report(results), stream)


def _print_checks(results: Sequence[Result], stream: TextIO) -> None:
    """Print a table of rich on a terminal, aligned text elsewhere."""
    if not _is_rich(stream):
        print(f"{format_table(results)}\n", file=stream)
        return
    from rich.console import Console  # optional
    from rich.table import Table  # optional
    from rich.text import Text  # optional

    titles, *rows = table_rows(results)
    table = Table(*titles)
    for position, (op, check, status, samples) in enumerate(rows):
        is_first = position == 0 or rows[position - 1][0] != op
        if is_first:
            table.add_section()
        table.add_row(Text(op if is_first else ""), Text(check), Text(status, STYLES.get(status, "dim")), Text(samples))
    Console(file=stream).print(table, "")


def print_table(rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    """Print rows in columns, the first as their titles: a table of rich on a terminal, aligned text elsewhere."""
    if not _is_rich(stream):
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print("  ".join(cells).rstrip(), file=stream)
        return
    from rich.console import Console  # optional
    from rich.table import Table  # optional
    from rich.text import Text  # optional

    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*(Text(cell) for cell in row))  # a Text, since the square brackets of shapes are not markup
    Console(file=stream).print(table)


@contextlib.contextmanager
def progress(total: int, *, is_quiet: bool) -> Iterator[Callable[[Result], None] | None]:
    """Yield a callback for each result, or None; it shows a bar on a terminal, and a line now and then elsewhere."""
    if is_quiet:
        yield None
        return
    if not _is_rich(sys.stderr):
        yield Log(total)
        return
    from rich.console import Console  # optional
    from rich.progress import Progress  # optional

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=total)
        yield lambda result: bar.update(task, advance=1, description=f"{result.op}: {result.check}")


class Log:
    """Prints a line on standard error every 10 seconds, as far as results come."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._start = self._shown = time.monotonic()

    def __call__(self, result: Result) -> None:
        """Count a result."""
        self._number += 1
        now = time.monotonic()
        if now - self._shown >= SECONDS:
            self._shown = now
            done = f"{self._number} of {self._total}, {now - self._start:.0f} s"
            print(f"checking: {done}, {result.op}: {result.check}", file=sys.stderr, flush=True)


SECONDS = 10.0
"""Between two lines of a log."""


def _is_rich(stream: TextIO) -> bool:
    """Return True if the stream is a terminal that may be coloured, and rich is installed."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return importlib.util.find_spec("rich") is not None
