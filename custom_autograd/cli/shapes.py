"""custom-autograd shapes: proposes a line of shapes for each op, for its author to paste."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from custom_autograd.verification.harness.targets import Target

PURPOSE = "propose a line of shapes for ops, from their samples"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no options: this command has none."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Print a proposal for each op; nothing is changed.

    Raises:
        CheckError: a target is unknown, or its samples cannot be made.
    """
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    for target in [target_of(loaded.value) for text in arguments.targets for loaded in load(text)]:
        print("\n".join((target.name, *_lines(target))), end="\n\n", flush=True)
    return 0


def _lines(target: "Target") -> Iterator[str]:
    """Yield the line that is there, the proposal, and the reasons for its brackets."""
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
