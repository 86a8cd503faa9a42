"""One call of an op with a line of shapes, on the whole sample, with its gradients: what slices are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.verification.harness.agreement import to_double
from custom_autograd.verification.harness.base import find_refusal, first_line
from custom_autograd.verification.harness.cut_calls import WholeCall
from custom_autograd.verification.harness.sliced_calls import NamedFunction, Part, SlicedOutcome, run, values_of


def whole_call(
    described: DescribedOp, record: OpRecord, function: NamedFunction, sample: Sample
) -> tuple[WholeCall, str]:
    """Return a call in float64, if the op takes it, and why its gradients are left out; empty if they are not."""
    refused = ""
    try:
        found = _in_double(record, function, sample)
    except GradientError as error:  # the forward is compared all the same
        refused = first_line(error)
        found = _in_double(record, function, sample.map(Tensor.detach))
    values, outcome = values_of(record, found[0]), found[1]
    cotangents: dict[Part, Tensor] = {
        part: torch.randn_like(tensor, memory_format=torch.contiguous_format)
        for part, tensor in outcome.results.items()
        if tensor.requires_grad
    }
    sizes = described.sizes(values)
    line = sizes.line
    try:
        gradients = outcome.gradients(cotangents)
    except Exception as error:
        refusal = find_refusal(error)
        if refusal is None:
            raise
        return WholeCall(record, function, line, sizes, values, outcome, {}, {}), refusal
    return WholeCall(record, function, line, sizes, values, outcome, cotangents, gradients), refused


def _in_double(record: OpRecord, function: NamedFunction, sample: Sample) -> tuple[Sample, SlicedOutcome]:
    """Return a sample and its outcome, in float64 unless the op refuses that."""
    double = sample.map(lambda tensor: to_double(tensor.detach()).requires_grad_(tensor.requires_grad))
    try:
        return double, run(record, function, values_of(record, double))
    except Exception:  # noqa: BLE001  # it takes the sample as it is, or raises again
        return sample, run(record, function, values_of(record, sample))
