"""custom-autograd list: which ops a target declares, and what each can do."""

import argparse
from collections.abc import Mapping

from custom_autograd.rendering.tables import align

PURPOSE = "list ops and what each of them can do"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no options: this command has none."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Print one line per op; 0.

    Raises:
        CheckError: a target is unknown or declares no ops.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    values = [loaded.value for text in arguments.targets for loaded in load(text)]
    found = [capabilities_of(value) for value in values]
    names = list(dict.fromkeys(name for capabilities in found for name in capabilities))
    rows = [["op", *names, "declared at"]]
    for value, capabilities in zip(values, found, strict=True):
        target = target_of(value)
        cells = [_kernels(value) if name == "kernels" else _word(capabilities.get(name, "unknown")) for name in names]
        rows.append([target.name, *cells, target.location or "unknown"])
    print(align(rows))
    return 0


def capabilities_of(value: object) -> Mapping[str, str]:
    """Return capability -> where it comes from; empty for a value without capabilities."""
    capabilities = getattr(value, "capabilities", None)
    if not callable(capabilities):
        return {}
    result = capabilities()
    return result if isinstance(result, Mapping) else {}


def _kernels(value: object) -> str:
    """Return the kernels by device type and name, in the order in which they are tried."""
    record = getattr(value, "_record", None)
    return "unknown" if record is None else ", ".join(kernel.title for kernel in record.kernels.all())


def _word(source: str) -> str:
    """Return "registered", "derived" or "missing", without the details that `show` gives."""
    return source.split(maxsplit=1)[0].rstrip(":") if source else "missing"
