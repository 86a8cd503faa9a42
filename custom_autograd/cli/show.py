"""Prints declarations, capabilities and shapes of ops, for `custom-autograd list`, `show` and `shapes`."""

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from custom_autograd.registration.kernel import Kernel
    from custom_autograd.verification.harness.targets import Target


WIDTH = 100
"""Columns of a line."""


def list_ops(arguments: argparse.Namespace) -> int:
    """Print a few lines for each op; return 0.

    Raises:
        CheckError: a target is unknown or declares no ops.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch

    for value in [loaded.value for text in arguments.targets for loaded in load(text)]:
        print("\n".join(_listed(value)))
    return 0


def capabilities_of(value: object) -> Mapping[str, str]:
    """Return the source of each capability; empty for an object without capabilities."""
    capabilities = getattr(value, "capabilities", None)
    if not callable(capabilities):
        return {}
    result = capabilities()
    return result if isinstance(result, Mapping) else {}


def _listed(value: object) -> Iterator[str]:
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    target = target_of(value)
    yield f"{target.name}, {target.location or 'declared at an unknown place'}"
    titles = [kernel.title for kernel in _kernels(value)]
    rows: dict[str, list[str]] = {"kernels": titles, "registered": [], "derived": [], "none": []}
    for name, source in capabilities_of(value).items():
        word = source.split(maxsplit=1)[0].rstrip(":") if source else ""
        if name != "kernels":
            rows[word if word in ("registered", "derived") else "none"].append(name)
    for title, names in rows.items():
        text = ", ".join(names)
        yield from textwrap.wrap(text, WIDTH, initial_indent=f"  {title:<12}", subsequent_indent=" " * 14)


def _kernels(value: object) -> "list[Kernel]":
    """Return the kernels in the order in which they are tried."""
    record = getattr(value, "_record", None)
    return [] if record is None else list(record.kernels.all())


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--source", action="store_true", help="show the generated source as well")


def show_ops(arguments: argparse.Namespace) -> int:
    """Print a section for each op; return 0.

    Raises:
        CheckError: a target is unknown or declares no ops, or its samples cannot be made.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch

    sections = [
        "\n".join(_shown(loaded.value, has_source=arguments.source))
        for text in arguments.targets
        for loaded in load(text)
    ]
    print("\n\n".join(sections))
    return 0


def _shown(value: object, *, has_source: bool) -> Iterator[str]:
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    target = target_of(value)
    yield target.name
    yield from _block("schema", _schema(value))
    yield from _block("declared", [target.location] if target.location else [])
    yield from _block("kernels", [f"{kernel.title:<16} {kernel.details}" for kernel in _kernels(value)])
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


def _calls(value: object) -> list[str]:
    from custom_autograd.native.loading import describe_calls  # imports torch
    from custom_autograd.registration.registry import record_of

    record = record_of(value)
    return [] if record is None else [f"{name:<16} {text}" for name, text in describe_calls(record).items()]


def _samples(value: object) -> list[str]:
    from custom_autograd.verification.check import case_of  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    if target_of(value).samples is None:
        return ["none are registered (register_samples)"]
    return [str(sample) for sample in case_of(value).samples]


def propose_shapes(arguments: argparse.Namespace) -> int:
    """Print a proposal for each op without changing it; return 0.

    Raises:
        CheckError: a target is unknown, or its samples cannot be made.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    for target in [target_of(loaded.value) for text in arguments.targets for loaded in load(text)]:
        print("\n".join((target.name, *_proposed(target))), end="\n\n", flush=True)
    return 0


def _proposed(target: "Target") -> Iterator[str]:
    """Yield the declared line, the proposal, and the reasons for its brackets."""
    from custom_autograd.containers.op_adapter import adapter_of  # imports torch
    from custom_autograd.shapes.rule import described_op  # imports torch
    from custom_autograd.verification.check import case_of  # imports torch
    from custom_autograd.verification.harness.line_proposals import propose  # imports torch
    from custom_autograd.verification.harness.records import record_of  # imports torch

    record = record_of(target)
    if record is None or adapter_of(record.declaration).has_containers:
        yield "  a line is proposed for ops of custom_op without containers only"
        return
    if target.samples is None:
        yield "  no samples are registered (register_samples), and a proposal comes from them"
        return
    described = described_op(record)
    if described is not None:
        yield f"  declared   {described.rule.shown}"
    samples = [sample for sample in case_of(target.subject).samples if sample.error is None]
    try:
        proposal = propose(target, record, samples)
    except Exception as error:  # noqa: BLE001 - an op may raise anything on its own samples
        yield f"  no line is proposed: {type(error).__name__}: {error}"
        return
    yield f'  proposed   shapes="{proposal.line}"'
    yield from (f"  [{name}]        {reason}" for name, reason in proposal.reasons.items())
    if proposal.misfits:
        yield f"  {len(proposal.misfits)} of {len(samples)} samples do not have these dimensions, such as"
        yield f"    {proposal.misfits[0]}"
