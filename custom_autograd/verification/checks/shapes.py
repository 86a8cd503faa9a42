"""An op with a line of shapes has them, and computes of slices what the line claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from custom_autograd.core.errors import ShapeError
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.rule import described_op
from custom_autograd.verification.harness.agreement import why_no_reference
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    skipped,
)
from custom_autograd.verification.harness.cut_calls import compare_slices, whole_call
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.slices import (
    cut_dimensions,
    cuts_of,
    find_other_metadata,
    find_other_shapes,
    op_function,
    reference_function,
    run,
    values_of,
)
from custom_autograd.verification.harness.targets import Target


class Shapes(Check):
    """Outputs against the line; then the op on slices along each dimension without brackets, and its gradients."""

    name = "shapes"
    code = "F17"
    group = "values"
    is_quick = True
    purpose = "outputs have the dimensions of the line of shapes, and slices along those without brackets give slices"

    def __init__(self, uncut: Sequence[str] = ()) -> None:
        """Make the check; `uncut`: what no sample cuts."""
        self._uncut = tuple(uncut)

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless the op has a line."""
        record = record_of(target)
        return NO_LINE if record is None or described_op(record) is None else None

    def among(self, target: Target, samples: Sequence[Sample]) -> Check:
        """Return the check that reports what none of the samples cuts."""
        found: dict[str, bool] = {}
        for sample in samples:
            for name, is_cut in _cut_names(_record(target), sample).items():
                found[name] = found.get(name, False) or is_cut
        return Shapes([name for name, is_cut in found.items() if not is_cut])

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per tensor that is not as its line says, else one per dimension."""
        if any(tensor.layout != torch.strided for tensor in sample.tensors()):
            raise NothingToCheckError("a tensor of the sample is not strided, and has no slices")
        try:
            yield from self._findings(target, sample)
        except ShapeError as error:  # of the sample, or of a call in the backward of the op
            yield failed(f"the line refuses the call: {error}")

    def _findings(self, target: Target, sample: Sample) -> Iterator[Finding]:
        record = _record(target)
        described = _described(record)
        problems = list(_find_problems(described, record, sample))
        if problems:
            yield from map(failed, problems)
            return
        found = [PASSED, *_compare(described, record, sample)]
        yield from found
        if why_no_reference(target) is None and not any(finding.status == "failed" for finding in found):
            yield from _compare_reference(described, record, sample)
        yield from self._find_uncut(record, sample)

    def _find_uncut(self, record: OpRecord, sample: Sample) -> Iterator[Finding]:
        for name in self._uncut:
            if name in _cut_names(record, sample):
                text = f"no sample cuts '{name}': its size is 0 or 1 in all of them; add one with 3 or more"
                yield skipped(text, advice=text)


def _record(target: Target) -> OpRecord:
    return cast(OpRecord, record_of(target))


def _described(record: OpRecord) -> DescribedOp:
    return cast(DescribedOp, described_op(record))


def _find_problems(described: DescribedOp, record: OpRecord, sample: Sample) -> list[str]:
    """Return what outputs of a call as it is do not have of their line."""
    values = values_of(record, sample)
    sizes = described.sizes(values)
    line = sizes.line
    with torch.no_grad():
        outcome = run(record, op_function(record), values, has_gradients=False)
    shapes = list(find_other_shapes(line, sizes, outcome))
    return shapes or list(find_other_metadata(described, record, values, outcome))


def _compare(described: DescribedOp, record: OpRecord, sample: Sample) -> Iterator[Finding]:
    """Yield one finding for each dimension that the call can be cut along."""
    whole, reason = whole_call(described, record, op_function(record), sample)
    if reason:
        yield skipped(f"gradients: {reason}")
    for dimension in whole.dimensions():
        finding = compare_slices(whole, dimension)
        if finding is not None:
            yield finding


def _compare_reference(described: DescribedOp, record: OpRecord, sample: Sample) -> Iterator[Finding]:
    """Yield what the values of the reference do not have of the line."""
    reference = reference_function(record)
    assert reference is not None  # the target has one
    whole, _ = whole_call(described, record, reference, sample.map(Tensor.detach))
    for problem in find_other_shapes(whole.line, whole.sizes, whole.outcome):
        yield failed(f"the reference: {problem}")
        return
    for dimension in whole.dimensions():
        finding = compare_slices(whole, dimension)
        if finding is not None and finding.status == "failed":
            yield failed(f"the reference: {finding.message}", cause=finding.cause)


def _cut_names(record: OpRecord, sample: Sample) -> dict[str, bool]:
    """Return the dimensions without brackets of a sample, and whether they are large enough to be cut."""
    described, values = _described(record), values_of(record, sample)
    try:
        sizes = described.sizes(values)
    except ShapeError:  # it is a finding of the sample
        return {}
    found: dict[str, bool] = {}
    for dimension in cut_dimensions(sizes.line, sizes, record.declaration.schema):
        is_cut = any(cuts_of({0: dimension.size(sizes)}))
        found[dimension.written] = found.get(dimension.written, False) or is_cut
    return found


NO_LINE = "no line declares the dimensions of its tensors (shapes=, register_shapes)"
