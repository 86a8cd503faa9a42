"""custom-autograd show: what is known of an op, on at most a page, and its generated source."""

import argparse
from collections.abc import Iterator

from custom_autograd.cli.list_ops import capabilities_of

PURPOSE = "show schema, kernels, calls, coverage and samples of ops"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--source", action="store_true", help="show the generated source as well")


def run(arguments: argparse.Namespace) -> int:
    """Print one section per op; 0.

    Raises:
        CheckError: a target is unknown or declares no ops, or its samples cannot be made.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch

    sections = [
        "\n".join(_lines(loaded.value, has_source=arguments.source))
        for text in arguments.targets
        for loaded in load(text)
    ]
    print("\n\n".join(sections))
    return 0


def _lines(value: object, *, has_source: bool) -> Iterator[str]:
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    target = target_of(value)
    yield target.name
    yield from _block("schema", _schema(value))
    yield from _block("declared", [target.location] if target.location else [])
    yield from _block("kernels", _kernels(value))
    yield from _block("calls", _calls(value))
    yield from _block("coverage", [f"{name:<16} {source}" for name, source in capabilities_of(value).items()])
    yield from _block("samples", _samples(value))
    source = getattr(value, "source", None) if has_source else None
    if isinstance(source, str):
        yield "  source"
        yield from (f"    {line}".rstrip() for line in source.splitlines())


def _block(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        more = len(lines) - MOST_LINES
        yield f"  {title}"
        yield from (f"    {line}".rstrip() for line in lines[:MOST_LINES])
        yield from ([f"    and {more} more"] if more > 0 else [])


MOST_LINES = 20
"""Lines of one block."""


def _schema(value: object) -> list[str]:
    from custom_autograd.torch_private.verification import schema_text  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    record, overload = getattr(value, "_record", None), target_of(value).overload
    if record is not None:
        return [f"{record.name}{record.declaration.schema}"]
    return [] if overload is None else [schema_text(overload)]


def _kernels(value: object) -> list[str]:
    record = getattr(value, "_record", None)
    return [] if record is None else [f"{kernel.title:<16} {kernel.details}" for kernel in record.kernels.all()]


def _calls(value: object) -> list[str]:
    from custom_autograd.native.explained import describe_calls  # imports torch
    from custom_autograd.registration.registry import record_of

    record = record_of(value)
    return [] if record is None else [f"{name:<16} {text}" for name, text in describe_calls(record).items()]


def _samples(value: object) -> list[str]:
    from custom_autograd.verification.check import case_of  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    if target_of(value).samples is None:
        return ["none are registered (register_samples)"]
    return [str(sample) for sample in case_of(value).samples]
