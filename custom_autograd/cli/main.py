"""Runs a command of the command line, and returns its exit code."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from custom_autograd import __version__
from custom_autograd.cli import bench, build, check, migrate, mutate, native, new, show
from custom_autograd.cli.stopping import exit_code, sigterm_raises, stopped_by

USAGE = 2
CLOSED = 128 + 13  # SIGPIPE, which Windows does not have


@dataclass(frozen=True, slots=True)
class Command:
    """One command: name, purpose, options, action, and True if it takes TARGETs."""

    name: str
    purpose: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    takes_targets: bool = True


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        0 without findings, 1 with findings, 2 if the command cannot run, 130 after Ctrl-C, 141 if the reader of the
        output closed it, 143 after SIGTERM.
    """
    _prepare_streams()
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_usage(sys.stderr)
        return USAGE
    return _run(arguments)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every command."""
    parser = argparse.ArgumentParser(
        prog="custom-autograd", description="Starts, verifies, measures, migrates, lists and shows custom operators."
    )
    parser.add_argument("--version", action="version", version=f"custom-autograd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        epilog = EPILOG if command.takes_targets else None
        own = commands.add_parser(command.name, help=command.purpose, description=command.purpose, epilog=epilog)
        if command.takes_targets:
            own.add_argument("targets", nargs="+", metavar="TARGET", help="what to look at")
        command.configure(own)
        own.set_defaults(run=command.run)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from custom_autograd.core.errors import CheckError, DeclarationError  # imports torch

    try:
        with sigterm_raises():
            code: int = arguments.run(arguments)
    except (CheckError, DeclarationError) as error:
        print(f"custom-autograd: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # the reader of the output closed it, as `head` does
        sys.stdout = sys.stderr = _nowhere()  # Python flushes them at its end
        return CLOSED
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"custom-autograd: {text}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt as error:
        print(f"custom-autograd: {stopped_by(error)}", file=sys.stderr)
        return exit_code(error)
    return code


def _prepare_streams() -> None:
    """Have streams that take every text: closed ones are None, and those in ASCII raise for a name such as größe."""
    # In the locale C, Python chooses "surrogateescape", which raises for such a name too.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def no_options(parser: argparse.ArgumentParser) -> None:
    """Add no options: the command has only those of every command."""
    del parser


EPILOG = "A TARGET is a module, a file, a folder, or module:attribute (file.py:attribute)."

COMMANDS: tuple[Command, ...] = (
    Command("check", "verify ops on their samples", check.configure, check.run),
    Command("bench", "measure calls of ops on their samples, beside their reference", bench.configure, bench.run),
    Command("build", "compile the kernels of a package into it", build.configure, build.run, takes_targets=False),
    Command("list", "list ops and what each of them can do", no_options, show.list_ops),
    Command(
        "migrate",
        "rewrite ops of torch.library and autograd.Functions as ops of this package",
        migrate.configure,
        migrate.run,
        takes_targets=False,
    ),
    Command(
        "mutate",
        "change the rules of ops on purpose, and show which changes the tests notice",
        mutate.configure,
        mutate.run,
    ),
    Command(
        "native",
        "say whether calls run natively here, and why not; build what they need",
        native.configure,
        native.run,
        takes_targets=False,
    ),
    Command("new", "write a starting file for a new op, and its test", new.configure, new.run, takes_targets=False),
    Command(
        "report",
        "make one report of several, such as the shards of one run",
        check.configure_report,
        check.merge_reports,
        takes_targets=False,
    ),
    Command("shapes", "propose a line of shapes for ops, from their samples", no_options, show.propose_shapes),
    Command("show", "show schema, kernels, calls, coverage and samples of ops", show.configure, show.show_ops),
)
