"""What `check` and `report` do with a report: write the documents that options name, and print it."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from custom_autograd.verification.report import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options for documents."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as one HTML page")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report as Markdown")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the report as JUnit XML, for CI services")
    parser.add_argument("-q", "--quiet", action="store_true", help="show only what was found")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the table of all ops and checks as well")
    parser.add_argument("--durations", action="store_true", help="show the seconds of each check")


def write_report(report: "Report", arguments: argparse.Namespace) -> None:
    """Write the documents that the options name."""
    documents: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (arguments.json, report.to_json),
        (arguments.html, report.to_html),
        (arguments.markdown, report.to_markdown),
        (arguments.junit, report.to_junit),
    )
    for path, document in documents:
        if path is not None:
            path.write_text(document(), encoding="utf-8", errors="backslashreplace")


def show_report(report: "Report", arguments: argparse.Namespace) -> None:
    """Print the report; only what was found, if there is anything, where the run is quiet."""
    from custom_autograd.cli.terminal import print_report, print_results  # imports rich
    from custom_autograd.verification.report.durations import format_durations, format_hint  # imports torch
    from custom_autograd.verification.report.headline import format_warnings  # imports torch
    from custom_autograd.verification.report.text import format_failures  # imports torch

    if not arguments.quiet:
        print_results(report.results, sys.stdout, is_verbose=arguments.verbose)
        timing = format_durations(report.results) if arguments.durations else format_hint(report.results)
        print(*([f"\n{timing}"] if timing else []), sep="", end="\n" if timing else "")
    elif not report.ok or format_warnings(report.results):
        print_report(format_failures(report.results), sys.stdout)
