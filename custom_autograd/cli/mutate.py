"""Changes the rules of ops on purpose, and shows which changes the tests detect, for `custom-autograd mutate`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from custom_autograd.cli.options import names_of, require_writable, write_document

if TYPE_CHECKING:
    from custom_autograd.verification.mutation.engine import Judge


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    suite = parser.add_mutually_exclusive_group()
    suite.add_argument("--checks", metavar="NAMES", help="the checks to run, separated by commas; all by default")
    suite.add_argument("--pytest", metavar="PATH", nargs="+", help="run pytest on these in place of our checks")
    suite.add_argument("--tests", metavar="COMMAND", help="run this command, which runs pytest, in their place")
    parser.add_argument("--operators", metavar="NAMES", help="the changes to make, separated by commas; all by default")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the test that detected each change; return 0 if every change was detected, 1 if one survived.

    Raises:
        CheckError: a target, a check or an operator is unknown, an op has nothing to change, or its tests fail as they
            are.
    """
    from custom_autograd.cli.terminal import print_table  # imports torch
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.mutation import engine  # imports torch

    require_writable(arguments.json)
    ops = [loaded.value for text in arguments.targets for loaded in load(text)]
    judge = _judge(arguments, ops)
    operators = None if arguments.operators is None else names_of(arguments.operators)
    is_own = arguments.pytest is None and arguments.tests is None
    outcomes = []
    for outcome in engine.mutate(ops, judge, operators=operators, seed=arguments.seed, needs_samples=is_own):
        outcomes.append(outcome)
        _show_progress(f"{len(outcomes)}: {outcome.op}, {outcome.rule}, {outcome.operator}: {outcome.status}")
    _show_progress("")
    print_table(engine.rows_of(outcomes), sys.stdout)
    print("\n".join(["", *engine.remarks_of(outcomes)]))
    if arguments.json is not None:
        write_document(arguments.json, engine.format_json(outcomes))
    return 0 if engine.is_clean(outcomes) else 1


def _judge(arguments: argparse.Namespace, ops: list[object]) -> "Judge":
    from custom_autograd.verification.check import select_checks  # imports torch
    from custom_autograd.verification.mutation.engine import by_checks, require_passing  # imports torch
    from custom_autograd.verification.mutation.suites import by_tests, command_for  # imports torch

    if arguments.pytest is not None:
        return by_tests(command_for(arguments.pytest))
    if arguments.tests is not None:
        return by_tests(shlex.split(arguments.tests))
    checks = select_checks(None if arguments.checks is None else names_of(arguments.checks))
    require_passing(ops, checks, seed=arguments.seed)
    return by_checks(checks, seed=arguments.seed)


def _show_progress(text: str) -> None:
    """Write a line to a terminal that the next line overwrites."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
