"""Options that commands share: how they are parsed, the ops that TARGETs name, and how reports are written."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from custom_autograd.schema.samples import Sample
    from custom_autograd.verification.harness.runner import Case
    from custom_autograd.verification.harness.targets import Target
    from custom_autograd.verification.report import Report, Result
    from custom_autograd.verification.report.results import Shard


def names_of(text: str) -> list[str]:
    """Return the names in a list separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def is_named(target: "Target", patterns: Sequence[str]) -> bool:
    """Return True if the name of a target matches a pattern; that of a Function, with or without its module."""
    subject = target.subject
    names = [target.name, *([subject.__qualname__, path_of(subject)] if isinstance(subject, type) else [])]
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def path_of(cls: type) -> str:
    """Return the name of a class with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


SURROGATE = "--surrogate names it"
"""Why the gradient of a Function is not the derivative."""


def dtype_of(name: str | None) -> "torch.dtype | None":
    """Return the dtype of a name such as float64.

    Raises:
        CheckError: if torch does not have a dtype of that name.
    """
    import torch  # heavy

    from custom_autograd.core.errors import CheckError  # imports torch

    value = None if name is None else getattr(torch, name.removeprefix("torch."), None)
    if name is not None and not isinstance(value, torch.dtype):
        raise CheckError(f"{name}: there is no dtype of that name; float32, float64, bfloat16 and complex64 are some")
    return value


def ranks_of(text: str) -> int:
    """Return a number of ranks.

    Raises:
        ArgumentTypeError: if the text is not one.
    """
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"a number of ranks is 2 or more, not {text!r}")
    return int(text)


def processes_of(text: str) -> int:
    """Return a number of processes; 0 means only this one.

    Raises:
        ArgumentTypeError: if the text is not one.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of processes is 0 or more, not {text!r}")
    return int(text)


def duration_of(text: str) -> float:
    """Return a time in seconds.

    Raises:
        ArgumentTypeError: if the text is not one.
    """
    from custom_autograd.core.durations import seconds_in  # imports torch

    seconds = seconds_in(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"a time is such as 30s, 2m or 1h, not {text!r}")
    return seconds


def shard_of(text: str) -> "Shard":
    """Return the shard of a text such as 3/16.

    Raises:
        ArgumentTypeError: if the text is not one.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"a shard is I/N, such as 3/16, with I from 1 to N, not {text!r}")
    from custom_autograd.verification.report.results import Shard  # imports torch

    return Shard(int(number), int(count))


@dataclass(frozen=True, slots=True)
class SelectedOp:
    """One op that a TARGET names.

    Args:
        text: the TARGET.
        position: of the op among those that the TARGET names.
        alone: a TARGET that names this op and no other.
        target: what is checked.
        samples: recorded calls, if no samples are registered.
        file: path of the saved calls.
        reason: why it has no samples, if it has none.
        surrogate: why its gradients are not the derivative, if an option names it.
    """

    text: str
    position: int
    alone: str
    target: "Target"
    samples: "tuple[Sample, ...]" = ()
    file: Path | None = None
    reason: str = "no samples are registered (register_samples)"
    surrogate: str | None = None

    @property
    def has_samples(self) -> bool:
        """Return True if samples are registered, or calls were recorded."""
        return self.target.samples is not None or bool(self.samples)


def select_ops(texts: Sequence[str], *, done: str = "checked") -> tuple[SelectedOp, ...]:
    """Return every op that the TARGETs name.

    Args:
        texts: the TARGETs.
        done: participle of what the command does, for messages.

    Raises:
        CheckError: if a TARGET is unknown, or no op has samples.
    """
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    ops = tuple(
        SelectedOp(text, position, loaded.alone, target_of(loaded.value))
        for text in texts
        for position, loaded in enumerate(load(text))
    )
    if not any(op.has_samples for op in ops):
        names = ", ".join(op.target.name for op in ops)
        raise CheckError(
            f"{names}: nothing was {done}, because no samples are registered (register_samples); "
            "those of ops that have no register_samples are given in Python: check(op, [Sample(...)])"
        )
    return ops


def cases_of(ops: Sequence[SelectedOp], arguments: argparse.Namespace, *, seconds: float | None = None) -> "list[Case]":
    """Return the cases of ops that have samples, which are made for a device, a dtype and a seed."""
    from custom_autograd.verification.check import case_of  # imports torch
    from custom_autograd.verification.harness.op_files import device_of  # imports torch

    device, dtype = device_of(arguments.device), dtype_of(arguments.dtype)
    return [
        case_of(op.target, op.samples or None, device=device, dtype=dtype, seed=arguments.seed, seconds=seconds)
        for op in ops
        if op.has_samples
    ]


def results_without_samples(ops: Sequence[SelectedOp]) -> "list[Result]":
    """Return a skipped result for each op without samples."""
    from custom_autograd.verification.report import Result  # imports torch

    return [Result(op.target.name, "all checks", "no sample", "skipped", op.reason) for op in ops if not op.has_samples]


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for documents."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as one HTML page")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report as Markdown")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the report as JUnit XML, for CI services")
    parser.add_argument("-q", "--quiet", action="store_true", help="show only what was found")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the table of all ops and checks as well")
    parser.add_argument("--durations", action="store_true", help="show the seconds of each check")


def require_writable(*paths: Path | None) -> None:
    """Raise an OSError if a file cannot be written, before the work whose results it is to hold."""
    for path in filter(None, paths):
        existing = path if path.exists() else path.parent
        code = 0 if os.access(existing, os.W_OK) else errno.EACCES if existing.exists() else errno.ENOENT
        if path.is_dir():
            code = errno.EISDIR
        if code:
            raise OSError(code, os.strerror(code), str(path))


def write_document(path: Path, text: str) -> None:
    """Write a file; if that fails, the error names the file, which that of a full disk does not."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def give_report(report: "Report", arguments: argparse.Namespace) -> None:
    """Print a report, and write the documents that the options name: a failure of one leaves the other."""
    try:
        _show(report, arguments)
    finally:
        _write(report, arguments)


def _write(report: "Report", arguments: argparse.Namespace) -> None:
    documents: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (arguments.json, report.to_json),
        (arguments.html, report.to_html),
        (arguments.markdown, report.to_markdown),
        (arguments.junit, report.to_junit),
    )
    for path, document in documents:
        if path is not None:
            write_document(path, document())


def _show(report: "Report", arguments: argparse.Namespace) -> None:
    """Print the report; only the findings, if there are any, with --quiet."""
    from custom_autograd.cli.terminal import print_report, print_results  # imports rich
    from custom_autograd.verification.report import text  # imports torch
    from custom_autograd.verification.report.results import format_warnings  # imports torch

    if not arguments.quiet:
        print_results(report.results, sys.stdout, is_verbose=arguments.verbose)
        timing = text.format_durations(report.results) if arguments.durations else text.format_hint(report.results)
        print(*([f"\n{timing}"] if timing else []), sep="", end="\n" if timing else "")
    elif not report.ok or format_warnings(report.results):
        print_report(text.format_failures(report.results), sys.stdout)
