"""custom-autograd check: verifies ops, shows what was found, and writes it down."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from custom_autograd.cli.options import device_of, dtype_of, names_of, processes_of

if TYPE_CHECKING:
    from custom_autograd.verification.harness.base import Check
    from custom_autograd.verification.harness.runner import Case
    from custom_autograd.verification.report import Report, Result

PURPOSE = "verify ops on their samples"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--checks", metavar="NAMES", help="checks, codes or groups, or quick; all by default")
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="where samples live (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="the dtype of samples, such as float64")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as one HTML page")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report as Markdown")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the report as JUnit XML, for CI services")
    parser.add_argument(
        "-j",
        metavar="N",
        dest="processes",
        type=processes_of,
        default=1,
        help="use N processes (default: 1); 0 checks in this one, which a crash ends",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show only what was found")


def run(arguments: argparse.Namespace) -> int:
    """Verify every target; 0 if nothing was found, else 1, or 130 after Ctrl-C, with what was found until then.

    Raises:
        CheckError: a target, a check, a device or a dtype is unknown, or no op has samples.
    """
    from custom_autograd.cli.terminal import progress  # imports torch
    from custom_autograd.verification.check import accepted_failures, select_checks  # imports torch
    from custom_autograd.verification.harness import acceptance  # imports torch
    from custom_autograd.verification.harness.op_files import is_whole, names_of_all  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    checks = select_checks(None if arguments.checks is None else names_of(arguments.checks))
    cases, without = cases_of(arguments)
    accepted = accepted_failures()
    if all(map(is_whole, arguments.targets)):
        acceptance.require_known(accepted, {*names_of_all(), *(case.target.name for case in cases)})
    total = sum(len(case.samples) for case in cases) * len(checks)
    verify = _verify_in_processes if arguments.processes else _verify_here
    with progress(total, is_quiet=arguments.quiet) as advance:
        found, is_complete = verify(arguments, cases, checks, advance)
    report = acceptance.accept(Report((*found.results, *without), found.sources), accepted)
    _write(report, arguments)
    _print(report, is_quiet=arguments.quiet)
    if not is_complete:
        print("custom-autograd: stopped by Ctrl-C; this is what was found until then", file=sys.stderr)
        return INTERRUPTED
    return 0 if report.ok else 1


def cases_of(arguments: argparse.Namespace, *, done: str = "checked") -> "tuple[list[Case], list[Result]]":
    """Return the targets with samples, and a skipped result for each without.

    `done` is what the command does to them.
    """
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.check import case_of  # imports torch
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch
    from custom_autograd.verification.report import Result  # imports torch

    device, dtype = device_of(arguments.device), dtype_of(arguments.dtype)
    cases, without = [], []
    for loaded in [loaded for text in arguments.targets for loaded in load(text)]:
        target = target_of(loaded.value)
        if target.samples is None:
            reason = "no samples are registered (register_samples)"
            without.append(Result(target.name, "all checks", "no sample", "skipped", reason))
            continue
        cases.append(case_of(target, device=device, dtype=dtype, seed=arguments.seed))
    if not cases:
        names = ", ".join(result.op for result in without)
        raise CheckError(
            f"{names}: nothing was {done}, because no samples are registered (register_samples); "
            "those of ops that have no register_samples are given in Python: check(op, [Sample(...)])"
        )
    return cases, without


def _verify_here(
    arguments: argparse.Namespace,
    cases: "list[Case]",
    checks: "Sequence[Check]",
    advance: "Callable[[Result], None] | None",
) -> "tuple[Report, bool]":
    """Return the report, and whether it is complete."""
    from custom_autograd.verification.harness import runner  # imports torch
    from custom_autograd.verification.isolation.running import loud  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    found: list[Result] = []

    def keep(result: "Result") -> None:
        found.append(result)
        if advance is not None:
            advance(result)

    try:
        with loud():
            return runner.run(cases, checks, seed=arguments.seed, on_result=keep), True
    except KeyboardInterrupt:
        return Report(tuple(found)), False


def _verify_in_processes(
    arguments: argparse.Namespace,
    cases: "list[Case]",
    checks: "Sequence[Check]",
    advance: "Callable[[Result], None] | None",
) -> "tuple[Report, bool]":
    """Return the same, by several processes."""
    from custom_autograd.cli.workers import Task, Workers  # imports torch
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    del cases  # tensors and rules do not travel: each process makes its own
    names, how = tuple(check.name for check in checks), (arguments.device, arguments.dtype, arguments.seed)
    tasks = [
        Task(text, position, target.name, names, *how, alone=loaded.alone)
        for text in arguments.targets
        for position, loaded in enumerate(load(text))
        if (target := target_of(loaded.value)).samples is not None
    ]
    workers = Workers(tasks, arguments.processes, advance)
    try:
        workers.run()
    except KeyboardInterrupt:
        return workers.report(), False
    return workers.report(), True


def _write(report: "Report", arguments: argparse.Namespace) -> None:
    documents: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (arguments.json, report.to_json),
        (arguments.html, report.to_html),
        (arguments.markdown, report.to_markdown),
        (arguments.junit, report.to_junit),
    )
    for path, document in documents:
        if path is not None:
            path.write_text(document(), encoding="utf-8", errors="backslashreplace")


def _print(report: "Report", *, is_quiet: bool) -> None:
    from custom_autograd.cli.terminal import print_report, print_results  # imports rich
    from custom_autograd.verification.report.headline import format_warnings  # imports torch
    from custom_autograd.verification.report.text import format_failures  # imports torch

    if not is_quiet:
        print_results(report.results, sys.stdout)
    elif not report.ok or format_warnings(report.results):
        print_report(format_failures(report.results), sys.stdout)


INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ends: 128 and the number of SIGINT."""
