"""custom-autograd list: which ops a target declares, and what each can do."""

import argparse
import textwrap
from collections.abc import Iterator, Mapping

PURPOSE = "list ops and what each of them can do"

WIDTH = 100
"""Columns of a line."""

WORDS = {"registered": "registered", "derived": "derived"}
"""How the source of a capability begins, and the row that has it; others are in the last one."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no options: this command has none."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Print a few lines per op; 0.

    Raises:
        CheckError: a target is unknown or declares no ops.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch

    for value in [loaded.value for text in arguments.targets for loaded in load(text)]:
        print("\n".join(_lines(value)))
    return 0


def capabilities_of(value: object) -> Mapping[str, str]:
    """Return capability -> where it comes from; empty for a value without capabilities."""
    capabilities = getattr(value, "capabilities", None)
    if not callable(capabilities):
        return {}
    result = capabilities()
    return result if isinstance(result, Mapping) else {}


def _lines(value: object) -> Iterator[str]:
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    target = target_of(value)
    yield f"{target.name}, {target.location or 'declared at an unknown place'}"
    rows: dict[str, list[str]] = {"kernels": _kernels(value), "registered": [], "derived": [], "none": []}
    for name, source in capabilities_of(value).items():
        word = source.split(maxsplit=1)[0].rstrip(":") if source else ""
        if name != "kernels":
            rows[WORDS.get(word, "none")].append(name)
    for title, names in rows.items():
        text = ", ".join(names)
        yield from textwrap.wrap(text, WIDTH, initial_indent=f"  {title:<12}", subsequent_indent=" " * 14)


def _kernels(value: object) -> list[str]:
    """Return the kernels by device type and name, in the order in which they are tried."""
    record = getattr(value, "_record", None)
    return [] if record is None else [kernel.title for kernel in record.kernels.all()]
