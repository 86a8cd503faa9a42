"""custom-autograd list: which ops a target declares, and what each can do."""

import argparse
from collections.abc import Mapping

PURPOSE = "list ops and what each of them can do"


def configure(parser: argparse.ArgumentParser) -> None:
    """This command has no options of its own."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Prints one line per op; 0.

    Raises:
        CheckError: a target is unknown or declares no ops.
    """
    from custom_autograd.verification.harness.loading import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch
    from custom_autograd.verification.report.text import align  # imports torch

    values = [loaded.value for text in arguments.targets for loaded in load(text)]
    coverages = [coverage_of(value) for value in values]
    capabilities = list(dict.fromkeys(name for coverage in coverages for name in coverage))
    rows = [["op", *capabilities, "declared at"]]
    for value, coverage in zip(values, coverages, strict=True):
        target = target_of(value)
        cells = [
            _kernels(value) if name == "kernels" else _word(coverage.get(name, "unknown")) for name in capabilities
        ]
        rows.append([target.name, *cells, target.location or "unknown"])
    print(align(rows))
    return 0


def coverage_of(value: object) -> Mapping[str, str]:
    """Capability -> where it comes from; empty for what does not say."""
    coverage = getattr(value, "coverage", None)
    if not callable(coverage):
        return {}
    result = coverage()
    return result if isinstance(result, Mapping) else {}


def _kernels(value: object) -> str:
    """The kernels by device type and name, in the order in which they are tried."""
    entry = getattr(value, "entry", None)
    return "unknown" if entry is None else ", ".join(kernel.title for kernel in entry.kernels.all())


def _word(source: str) -> str:
    """registered, derived or missing, without the details that `show` gives."""
    return source.split(maxsplit=1)[0].rstrip(":") if source else "missing"
