"""Verifies ops, or one shard of them, and reports the findings, for `custom-autograd check`.

`custom-autograd report` merges reports of `check --json`, such as the shards of one run.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from custom_autograd.cli.options import (
    SelectedOp,
    add_report_options,
    cases_of,
    dtype_of,
    duration_of,
    give_report,
    names_of,
    processes_of,
    ranks_of,
    require_writable,
    results_without_samples,
    shard_of,
)
from custom_autograd.cli.stopping import exit_code, stopped_by

if TYPE_CHECKING:
    from custom_autograd.cli.selection import Selection
    from custom_autograd.cli.terminal import Advance
    from custom_autograd.verification.harness.base import Check
    from custom_autograd.verification.harness.runner import Case
    from custom_autograd.verification.report import Report, Result
    from custom_autograd.verification.report.results import Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--checks", metavar="NAMES", help="checks, codes or groups, separated by commas, or quick; all by default"
    )
    parser.add_argument(
        "--explore",
        metavar="TIME",
        help="CPU time for drawn calls of each op, such as 30s, 2m or 1h (default: at most 2s); adds the check explore",
    )
    parser.add_argument(
        "--seconds",
        metavar="TIME",
        type=duration_of,
        help="CPU time for each op, such as 30s or 2m, after which no further check of it begins (default: no limit)",
    )
    _add_options_of_samples(parser)
    parser.add_argument(
        "--shard",
        metavar="I/N",
        type=shard_of,
        help="check one of N shards of the ops, with I from 1 to N; custom-autograd report joins their JSON",
    )
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=ranks_of,
        help="run the check sharding alone, on N processes with real collectives (gloo, or NCCL with --device cuda)",
    )
    add_report_options(parser)
    parser.add_argument(
        "-j",
        metavar="N",
        dest="processes",
        type=processes_of,
        default=1,
        help="use N processes (default: 1); 0 checks in this one, which a crash ends",
    )


def _add_options_of_samples(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        metavar="SCRIPT",
        help="a script, or tests for pytest, that calls the ops: recorded calls are the samples of those without",
    )
    parser.add_argument(
        "--surrogate",
        metavar="NAMES",
        default="",
        help="Functions whose gradient is not the derivative on purpose, separated by commas; * stands for any text",
    )
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="where samples live (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="the dtype of samples, such as float64")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Verify every target; return 0 without findings, 1 with some; 130 or 143 with those so far after a signal.

    Raises:
        CheckError: a target, a check, a device or a dtype is unknown, or no op has samples.
    """
    from custom_autograd.cli.selection import select_all  # imports torch

    require_writable(arguments.json, arguments.html, arguments.markdown, arguments.junit)
    _empty_document(arguments)
    checks = _checks_of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        selection = select_all(arguments, checks, Path(folder, "samples"))
        return _check(arguments, checks, selection)


def _check(arguments: argparse.Namespace, checks: "tuple[Check, ...]", selection: "Selection") -> int:
    from custom_autograd.cli.terminal import progress  # imports torch
    from custom_autograd.verification.check import accepted_failures  # imports torch
    from custom_autograd.verification.harness.op_files import is_whole, names_of_all  # imports torch
    from custom_autograd.verification.report import Report, acceptance  # imports torch

    ops = selection.ops
    own = [op for op in ops if arguments.shard is None or arguments.shard.holds(op.target.name)]
    cases = cases_of(own, arguments, seconds=arguments.seconds)
    accepted = accepted_failures()
    if all(map(is_whole, arguments.targets)):
        acceptance.require_known(accepted, {*names_of_all(), *selection.names()})
    if arguments.record is not None and not arguments.quiet:
        print(selection.describe())
    total = sum(len(case.samples) for case in cases) * len(checks)
    with progress(total, is_quiet=arguments.quiet) as shown:

        def advance(op: str, check: str, result: "Result | None") -> None:
            if result is not None and result.check in accepted.get(result.op, {}):
                result = replace(result, status="skipped")
            shown(op, check, result)

        found, ended = _verify(arguments, own, cases, checks, advance)
    origin = _origin(arguments, selection, checks, is_complete=ended is None)
    results = (*found.results, *results_without_samples(own), *selection.results_of(arguments.shard))
    report = acceptance.accept(Report(results, found.sources, origin), accepted)
    give_report(report, arguments)
    if arguments.shard is not None and not arguments.quiet:
        print(f"shard {arguments.shard}: {len(origin.own_ops()) or 'none'} of {len(origin.ops)} ops")
    if ended is not None:
        print(f"custom-autograd: {stopped_by(ended)}; this is what was found until then", file=sys.stderr)
        return exit_code(ended)
    return 0 if report.ok else 1


def _checks_of(arguments: argparse.Namespace) -> "tuple[Check, ...]":
    """Return the checks that the options select.

    Raises:
        CheckError: one is unknown, the time of --explore is none, or --ranks is given with others than sharding.
    """
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.check import all_checks, select_checks  # imports torch

    names = None if arguments.checks is None else names_of(arguments.checks)
    if arguments.ranks is not None:
        if names not in (None, ["sharding"]):
            raise CheckError("--ranks runs the check sharding only: leave --checks out")
        return select_checks(["sharding"])
    if arguments.explore is None:
        return select_checks(names)
    return select_checks([*(names or [check.name for check in all_checks()]), f"explore={arguments.explore}"])


def _empty_document(arguments: argparse.Namespace) -> None:
    """Empty the document of a shard: if this run is killed, that of an earlier run must not count as its document."""
    if arguments.shard is not None and arguments.json is not None:
        arguments.json.write_text("", encoding="utf-8")


def _origin(
    arguments: argparse.Namespace, selection: "Selection", checks: "Sequence[Check]", *, is_complete: bool
) -> "Run":
    """Return the facts about the run that the report records."""
    import torch  # heavy

    from custom_autograd import __version__
    from custom_autograd.verification.report.results import Run  # imports torch

    dtype = dtype_of(arguments.dtype)
    return Run(
        targets=tuple(arguments.targets),
        ops=selection.names(),
        checks=tuple(check.name for check in checks),
        device=arguments.device,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        seed=arguments.seed,
        torch=str(torch.__version__),
        custom_autograd=__version__,
        shard=arguments.shard,
        is_complete=is_complete,
    )


def _verify(
    arguments: argparse.Namespace,
    ops: Sequence[SelectedOp],
    cases: "list[Case]",
    checks: "Sequence[Check]",
    advance: "Advance",
) -> "tuple[Report, KeyboardInterrupt | None]":
    """Return the report, and what ended it early: by ranks, by processes, or by this one."""
    from custom_autograd.cli.workers import Workers, tasks_of, verify_on_ranks  # imports torch

    if arguments.ranks is not None:
        return verify_on_ranks(arguments, ops, advance)
    if not arguments.processes:
        return _verify_here(arguments.seed, cases, checks, advance)
    tasks = tasks_of(arguments, ops, tuple(check.asked for check in checks))  # each process makes its own tensors
    workers = Workers(tasks, arguments.processes, advance)
    try:
        workers.run()
    except KeyboardInterrupt as error:
        return workers.report(), error
    return workers.report(), None


def _verify_here(
    seed: int, cases: "list[Case]", checks: "Sequence[Check]", advance: "Advance"
) -> "tuple[Report, KeyboardInterrupt | None]":
    from custom_autograd.verification.harness import runner  # imports torch
    from custom_autograd.verification.processes.running import loud  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    found: list[Result] = []

    def keep(result: "Result") -> None:
        found.append(result)
        advance(result.op, result.check, result)

    def begin(op: str, check: "Check", _: str) -> None:
        advance(op, check.name, None)

    try:
        with loud():
            return runner.run(cases, checks, seed=seed, on_result=keep, on_start=begin), None
    except KeyboardInterrupt as error:
        return Report(tuple(found)), error


def configure_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of this command."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", type=Path, help="a file that custom-autograd check --json wrote"
    )
    add_report_options(parser)


def merge_reports(arguments: argparse.Namespace) -> int:
    """Write and show the merged report; return 0 without findings, else 1.

    Raises:
        CheckError: a file is not a report, a shard is missing or belongs to another run, or an op is missing or in
            two reports.
    """
    from custom_autograd.verification.report.report import Part, merge  # imports torch

    report = merge([Part(str(path), _read_report(path)) for path in arguments.files])
    give_report(report, arguments)
    return 0 if report.ok else 1


def _read_report(path: Path) -> "Report":
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
