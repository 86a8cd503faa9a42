"""custom-autograd check: verifies ops, or one shard of them, shows what was found, and writes it down."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from custom_autograd.cli import ranks, report_options
from custom_autograd.cli.options import dtype_of, names_of, processes_of, ranks_of, shard_of
from custom_autograd.cli.selected_ops import SelectedOp, cases_of, results_without_samples, select_ops

if TYPE_CHECKING:
    from custom_autograd.cli.terminal import Advance
    from custom_autograd.verification.harness.base import Check
    from custom_autograd.verification.harness.runner import Case
    from custom_autograd.verification.report import Report, Result
    from custom_autograd.verification.report.runs import Run

PURPOSE = "verify ops on their samples"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--checks", metavar="NAMES", help="checks, codes or groups, separated by commas, or quick; all by default"
    )
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="where samples live (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="the dtype of samples, such as float64")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")
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
    report_options.configure(parser)
    parser.add_argument(
        "-j",
        metavar="N",
        dest="processes",
        type=processes_of,
        default=1,
        help="use N processes (default: 1); 0 checks in this one, which a crash ends",
    )


def run(arguments: argparse.Namespace) -> int:
    """Verify every target; 0 if nothing was found, else 1, or 130 after Ctrl-C, with what was found until then.

    Raises:
        CheckError: a target, a check, a device or a dtype is unknown, or no op has samples.
    """
    from custom_autograd.cli.terminal import progress  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.check import accepted_failures, select_checks  # imports torch
    from custom_autograd.verification.harness import acceptance  # imports torch
    from custom_autograd.verification.harness.op_files import is_whole, names_of_all  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    _empty_document(arguments)
    names = None if arguments.checks is None else names_of(arguments.checks)
    if arguments.ranks is not None and names not in (None, ["sharding"]):
        raise CheckError("--ranks runs the check sharding only: leave --checks out")
    checks = select_checks(names if arguments.ranks is None else ["sharding"])
    ops = select_ops(arguments.targets)
    own = [op for op in ops if arguments.shard is None or arguments.shard.holds(op.target.name)]
    cases = cases_of(own, arguments)
    accepted = accepted_failures()
    if all(map(is_whole, arguments.targets)):
        acceptance.require_known(accepted, {*names_of_all(), *(op.target.name for op in ops)})
    total = sum(len(case.samples) for case in cases) * len(checks)
    with progress(total, is_quiet=arguments.quiet) as advance:
        found, is_complete = _verify(arguments, own, cases, checks, advance)
    origin = _origin(arguments, ops, checks, is_complete=is_complete)
    report = acceptance.accept(Report((*found.results, *results_without_samples(own)), found.sources, origin), accepted)
    report_options.write_report(report, arguments)
    report_options.show_report(report, arguments)
    if arguments.shard is not None and not arguments.quiet:
        print(f"shard {arguments.shard}: {len(origin.own_ops()) or 'none'} of {len(origin.ops)} ops")
    if not is_complete:
        print("custom-autograd: stopped by Ctrl-C; this is what was found until then", file=sys.stderr)
        return INTERRUPTED
    return 0 if report.ok else 1


def _empty_document(arguments: argparse.Namespace) -> None:
    """Empty the document of a shard, so that one of an earlier run does not replace that of a run that is killed."""
    if arguments.shard is not None and arguments.json is not None:
        arguments.json.write_text("", encoding="utf-8")


def _origin(
    arguments: argparse.Namespace, ops: Sequence[SelectedOp], checks: "Sequence[Check]", *, is_complete: bool
) -> "Run":
    """Return what the report records about its run; ops without samples come last, as in the report."""
    import torch  # heavy

    from custom_autograd import __version__
    from custom_autograd.verification.report.runs import Run  # imports torch

    dtype = dtype_of(arguments.dtype)
    return Run(
        targets=tuple(arguments.targets),
        ops=tuple(dict.fromkeys(op.target.name for op in sorted(ops, key=lambda op: not op.has_samples))),
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
    advance: "Advance | None",
) -> "tuple[Report, bool]":
    """Return the report, and whether it is complete."""
    if arguments.ranks is not None:
        return ranks.verify(arguments, ops, advance)
    if arguments.processes:  # tensors and rules do not travel: each process makes its own
        return _verify_in_processes(arguments, ops, checks, advance)
    return _verify_here(arguments, cases, checks, advance)


def _verify_here(
    arguments: argparse.Namespace,
    cases: "list[Case]",
    checks: "Sequence[Check]",
    advance: "Advance | None",
) -> "tuple[Report, bool]":
    """Return the report and whether it is complete, by this process."""
    from custom_autograd.verification.harness import runner  # imports torch
    from custom_autograd.verification.isolation.running import loud  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    found: list[Result] = []

    def keep(result: "Result") -> None:
        found.append(result)
        if advance is not None:
            advance(result.op, result.check, 1)

    def begin(op: str, check: "Check", _: str) -> None:
        if advance is not None:
            advance(op, check.name, 0)

    try:
        with loud():
            return runner.run(cases, checks, seed=arguments.seed, on_result=keep, on_start=begin), True
    except KeyboardInterrupt:
        return Report(tuple(found)), False


def _verify_in_processes(
    arguments: argparse.Namespace,
    ops: Sequence[SelectedOp],
    checks: "Sequence[Check]",
    advance: "Advance | None",
) -> "tuple[Report, bool]":
    """Return the same, by several processes."""
    from custom_autograd.cli.workers import Task, Workers  # imports torch

    names, how = tuple(check.name for check in checks), (arguments.device, arguments.dtype, arguments.seed)
    tasks = [Task(op.text, op.position, op.target.name, names, *how, alone=op.alone) for op in ops if op.has_samples]
    workers = Workers(tasks, arguments.processes, advance)
    try:
        workers.run()
    except KeyboardInterrupt:
        return workers.report(), False
    return workers.report(), True


INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ends: 128 and the number of SIGINT."""
