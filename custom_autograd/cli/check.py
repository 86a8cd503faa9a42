"""custom-autograd check: verifies ops, shows what was found, and writes it down."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from custom_autograd.checks.runner import Case
    from custom_autograd.report import Report, Result

PURPOSE = "verify ops on their samples"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command."""
    parser.add_argument("--checks", metavar="NAMES", help="the checks to run, separated by commas; all by default")
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="where samples live (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="the dtype of samples, such as float64")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as one HTML page")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report as Markdown")
    parser.add_argument("-q", "--quiet", action="store_true", help="show only what was found")


def run(arguments: argparse.Namespace) -> int:
    """Verifies every target; 0 if nothing was found, else 1.

    Raises:
        CheckError: a target, a check, a device or a dtype is unknown, or no op has samples.
    """
    from custom_autograd.checking import accepted_failures, select_checks  # imports torch
    from custom_autograd.checks import acceptance, runner  # imports torch
    from custom_autograd.checks.loading import is_whole, names_of_all  # imports torch
    from custom_autograd.cli.terminal import progress  # imports torch
    from custom_autograd.report import Report  # imports torch

    checks = select_checks(None if arguments.checks is None else _names(arguments.checks))
    cases, without = cases_of(arguments)
    accepted = accepted_failures()
    if all(map(is_whole, arguments.targets)):
        acceptance.require_known(accepted, {*names_of_all(), *(case.target.name for case in cases)})
    total = sum(len(case.samples) for case in cases) * len(checks)
    with progress(total, is_quiet=arguments.quiet) as advance:
        report = runner.run(cases, checks, seed=arguments.seed, on_result=advance)
    report = acceptance.accept(Report((*report.results, *without)), accepted)
    _write(report, arguments)
    _print(report, is_quiet=arguments.quiet)
    return 0 if report.ok else 1


def cases_of(arguments: argparse.Namespace, *, done: str = "checked") -> "tuple[list[Case], list[Result]]":
    """The targets with samples, and a skipped result for each without; `done` is what the command does to them."""
    from custom_autograd.checking import case_of  # imports torch
    from custom_autograd.checks.loading import load  # imports torch
    from custom_autograd.checks.targets import target_of  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.report import Result  # imports torch

    device, dtype = _device(arguments.device), _dtype(arguments.dtype)
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
        raise CheckError(f"{names}: nothing was {done}, because no samples are registered (register_samples)")
    return cases, without


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _dtype(name: str | None) -> "torch.dtype | None":
    import torch  # heavy

    from custom_autograd.core.errors import CheckError  # imports torch

    value = None if name is None else getattr(torch, name.removeprefix("torch."), None)
    if name is not None and not isinstance(value, torch.dtype):
        raise CheckError(f"{name}: there is no dtype of that name; float32, float64, bfloat16 and complex64 are some")
    return value


def _device(name: str) -> "torch.device":
    import torch  # heavy

    from custom_autograd.checks.kernels import has_device  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CheckError(f"{name}: there is no device type of that name") from error
    if not has_device(device.type):
        raise CheckError(f"{name}: there is no such device here")
    return device


def _write(report: "Report", arguments: argparse.Namespace) -> None:
    documents: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (arguments.json, report.to_json),
        (arguments.html, report.to_html),
        (arguments.markdown, report.to_markdown),
    )
    for path, document in documents:
        if path is not None:
            path.write_text(document(), encoding="utf-8")


def _print(report: "Report", *, is_quiet: bool) -> None:
    from custom_autograd.cli.terminal import print_report  # imports rich
    from custom_autograd.report.text import format_failures  # imports torch

    if not is_quiet:
        print_report(str(report), sys.stdout)
    elif not report.ok:
        print_report(format_failures(report.results), sys.stdout)
