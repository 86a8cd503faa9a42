"""custom-autograd report: makes one report of those that `check --json` wrote, such as the shards of one run."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from custom_autograd.cli import report_options

if TYPE_CHECKING:
    from custom_autograd.verification.report import Report

PURPOSE = "make one report of several, such as the shards of one run"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of this command."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", type=Path, help="a file that custom-autograd check --json wrote"
    )
    report_options.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write and show the whole report; 0 if nothing was found, else 1.

    Raises:
        CheckError: a file is not a report, a shard is missing or belongs to another run, or an op is missing or in
            two reports.
    """
    from custom_autograd.verification.report.merging import Part, merge  # imports torch

    report = merge([Part(str(path), _read(path)) for path in arguments.files])
    report_options.write_report(report, arguments)
    report_options.show_report(report, arguments)
    return 0 if report.ok else 1


def _read(path: Path) -> "Report":
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    try:
        text = path.read_text(encoding="utf-8")
        if not text:
            raise CheckError(str(path), "the file is empty", do="wait for the run that writes it, or run it again")
        return Report.from_json(text)
    except UnicodeDecodeError as error:
        raise CheckError(str(path), "this is not text in UTF-8", do=GIVE) from error
    except json.JSONDecodeError as error:
        raise CheckError(str(path), f"this is not JSON, or its end is missing: {error}", do=GIVE) from error
    except ValueError as error:
        raise CheckError(str(path), str(error), do=GIVE) from error


GIVE = "give a file that check --json has written"
