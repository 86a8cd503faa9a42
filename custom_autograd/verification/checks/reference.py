"""The op computes what its reference computes, for larger and smaller numbers, zeros, ties and other scalars too."""

import contextlib
import itertools
from collections.abc import Iterable

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.agreement import compare_values, values_of, why_no_reference
from custom_autograd.verification.harness.base import Check, Finding, failed, first_line
from custom_autograd.verification.harness.domain import within_domain
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.variants import scalars, small_values, values


class Reference(Check):
    """Values against the reference, hidden outputs and written inputs included."""

    name = "reference"
    code = "F01"
    group = "values"
    is_quick = True
    purpose = "values equal those of the reference, whatever the numbers"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference, and something other than it."""
        return why_no_reference(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per variant; those that the reference refuses are left out."""
        assert target.reference is not None
        try:
            yield compare_values(target, target.reference, copy(sample), "as given", "the reference")
        except NotImplementedError as error:  # the op takes the sample: FirstCall
            yield failed(f"the reference raises {first_line(error)}", cause="a reference takes every sample of its op")
            return
        others = (
            row
            for row in within_domain(target, sample, scalars(sample, target.arguments))
            if _is_finite(target, row[1])
        )
        for label, variant in itertools.chain(values(sample), others):
            finding = compare_values(target, target.reference, copy(variant), label, "the reference")
            if finding.status != "skipped":
                yield finding
        for label, variant in small_values(sample):
            finding = compare_values(target, target.reference, copy(variant), label, "the reference", is_scaled=True)
            if finding.status != "skipped":
                yield finding


def _is_finite(target: Target, sample: Sample) -> bool:
    """Return True if the reference has finite results: else a scalar is outside of what the op is made for."""
    assert target.reference is not None
    with torch.no_grad(), contextlib.suppress(Exception):
        state = RandomState.current()
        found = values_of(target, target.reference, sample)
        state.restore()
        return all(bool(torch.isfinite(y).all()) for y in found if y.layout == torch.strided)
    return False
