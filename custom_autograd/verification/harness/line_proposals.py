"""Proposes a line of shapes for an op: its names by probing a sample, its brackets by cutting all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.contract import numbers_of
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.rule import ShapesRule
from custom_autograd.verification.harness.cut_calls import compare_slices
from custom_autograd.verification.harness.line_agreement import find_other_shapes
from custom_autograd.verification.harness.line_drafts import Draft, draft_of
from custom_autograd.verification.harness.sliced_calls import op_function
from custom_autograd.verification.harness.slices import cut_dimensions
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.whole_calls import whole_call

MOST_DRAFTS = 4
UNKNOWN, GROUP = re.compile(r"(?<!\w)(1|_|\.\.\.)(?!\w)"), re.compile(r"\[\*")
"""Dimensions without a name, and groups in brackets."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A line, and why it is what it is.

    Attributes:
        line: the text.
        reasons: by name in brackets, why the op cannot be cut along it.
        misfits: the samples that do not have these dimensions.
    """

    line: str
    reasons: Mapping[str, str]
    misfits: tuple[Sample, ...]


def propose(target: Target, record: OpRecord, samples: Sequence[Sample]) -> Proposal:
    """Return the line that fits the most samples; of those, the one with the fewest brackets.

    Args:
        target: the op.
        record: of the op.
        samples: calls that it accepts.
    """
    found: list[Proposal] = []
    for sample in sorted(samples, key=_telling, reverse=True)[:MOST_DRAFTS]:
        draft = draft_of(target, record, sample, samples)
        found += [_bracketed(record, draft, leading, samples) for leading in range(len(draft.leading) + 1)]
    return min(found, key=_cost)


def _cost(proposal: Proposal) -> tuple[int, ...]:
    """Return what is against a proposal, the worst first."""
    line = proposal.line
    unknown, groups = len(UNKNOWN.findall(line)), len(GROUP.findall(line))
    return len(proposal.misfits), unknown, groups, len(proposal.reasons), len(line)


def _telling(sample: Sample) -> tuple[int, int]:
    """Return how much a sample shows: the number of its tensors with sizes other than 0 and 1, and of sizes."""
    tensors = [tensor for tensor in sample.tensors() if all(size > 1 for size in tensor.shape)]
    return len(tensors), len({size for tensor in tensors for size in tensor.shape})


def _bracketed(record: OpRecord, draft: Draft, leading: int, samples: Sequence[Sample]) -> Proposal:
    """Return a draft with brackets around the names along which a sample cannot be cut."""
    reasons = dict(draft.fixed)
    while True:
        line = draft.line(leading, reasons)
        results = [(sample, _find_false(record, line, sample)) for sample in samples]
        false = {
            name: f"{why}  (on {sample})"
            for sample, found in results
            for name, why in (found or {}).items()
            if name not in reasons
        }
        if not false:
            misfits = tuple(sample for sample, found in results if found is None)
            return Proposal(line, reasons, misfits)
        reasons |= false


def _find_false(record: OpRecord, line: str, sample: Sample) -> dict[str, str] | None:
    """Return the names whose claims are false, each with the reason; None if the sample does not fit the line."""
    try:
        described = DescribedOp(record.declaration, ShapesRule("", line))
        whole, _ = whole_call(described, record, op_function(record), sample)
        if any(find_other_shapes(whole.line, whole.sizes, whole.outcome)):
            return None
        dimensions = cut_dimensions(whole.line, whole.sizes, numbers_of(whole.line, record.declaration.schema))
        found = [(dimension.name, compare_slices(whole, dimension)) for dimension in dimensions]
    except Exception:  # noqa: BLE001 - whatever the line or the op raises for the sample, the line is not for it
        return None
    return {name: finding.message for name, finding in found if finding is not None and finding.status == "failed"}
