"""Prints in colour and with a progress bar on a terminal, if rich is installed; plain text elsewhere."""

import contextlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO, TypeAlias

from custom_autograd.verification.report import Result
from custom_autograd.verification.report.text import format_report, format_table, table_rows

Advance: TypeAlias = Callable[[str, str, "Result | None"], None]
"""Called with an op, a check, and its result on a sample, which is None when the check begins."""

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
    """Print a report, after the table of ops and checks if it is verbose."""
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
def progress(total: int, *, is_quiet: bool) -> Iterator[Advance]:
    """Yield a function to call when checks begin and end; it shows a bar on a terminal, and prints lines elsewhere.

    Each finding is printed at once.
    """
    if is_quiet:
        yield lambda op, check, result: None
        return
    if not _is_rich(sys.stderr):
        log, is_over = Log(total), threading.Event()
        thread = threading.Thread(target=log.show_until, args=(is_over,), daemon=True)
        thread.start()
        try:
            yield log
        finally:
            is_over.set()
            thread.join()
        return
    from rich.console import Console  # optional
    from rich.progress import Progress  # optional

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=total)

        def advance(op: str, check: str, result: Result | None) -> None:
            bar.update(task, advance=result is not None, description=f"{op}: {check}")
            if result is not None and result.is_finding:
                bar.console.print(_headline(result), markup=False, highlight=False)

        yield advance


def _headline(result: Result) -> str:
    return f"{result.status}: {result.op}, {result.check}, on {result.sample}"


class Log:
    """Prints a line on standard error every 10 seconds, also while one check runs, and one for each finding."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._current = "starting"
        self._start = time.monotonic()

    def __call__(self, op: str, check: str, result: Result | None) -> None:
        """Record the check that runs, count results, and print findings, as `Advance`."""
        self._number += result is not None
        self._current = f"{op}: {check}"
        if result is not None and result.is_finding:
            print(_headline(result), file=sys.stderr, flush=True)

    def show(self) -> None:
        """Print the line."""
        done = f"{self._number} of {self._total}, {time.monotonic() - self._start:.0f} s"
        print(f"checking: {done}, {self._current}", file=sys.stderr, flush=True)

    def show_until(self, is_over: threading.Event) -> None:
        """Print a line every 10 seconds until the end."""
        while not is_over.wait(SECONDS):
            self.show()


SECONDS = 10.0
"""Time between two lines of a log, s."""


def _is_rich(stream: TextIO) -> bool:
    """Return True if the stream is a terminal that allows colours, and rich is installed."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return importlib.util.find_spec("rich") is not None
