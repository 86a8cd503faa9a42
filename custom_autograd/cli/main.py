"""The command line: which command runs, and with which exit code it ends."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from custom_autograd import __version__
from custom_autograd.cli import bench, check, list_ops, mutate, native, new, report, shapes, show

USAGE = 2


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its name, what it is for, its options, what it does, and whether it looks at TARGETs."""

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
        0 if all is well, 1 if something was found, 2 if the command could not be carried out, 130 after Ctrl-C.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_usage(sys.stderr)
        return USAGE
    return _run(arguments)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every command."""
    parser = argparse.ArgumentParser(
        prog="custom-autograd", description="Starts, verifies, measures, lists and shows custom operators."
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
        code: int = arguments.run(arguments)
    except (CheckError, DeclarationError) as error:
        print(f"custom-autograd: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"custom-autograd: {error.filename}: {error.strerror}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("custom-autograd: stopped by Ctrl-C", file=sys.stderr)
        return check.INTERRUPTED
    return code


EPILOG = "A TARGET is a module, a file, a folder, or module:attribute (file.py:attribute)."

COMMANDS: tuple[Command, ...] = (
    Command("check", check.PURPOSE, check.configure, check.run),
    Command("bench", bench.PURPOSE, bench.configure, bench.run),
    Command("list", list_ops.PURPOSE, list_ops.configure, list_ops.run),
    Command("mutate", mutate.PURPOSE, mutate.configure, mutate.run),
    Command("native", native.PURPOSE, native.configure, native.run, takes_targets=False),
    Command("new", new.PURPOSE, new.configure, new.run, takes_targets=False),
    Command("report", report.PURPOSE, report.configure, report.run, takes_targets=False),
    Command("shapes", shapes.PURPOSE, shapes.configure, shapes.run),
    Command("show", show.PURPOSE, show.configure, show.run),
)
