"""The op computes what its reference computes, in every memory layout."""

from collections.abc import Iterable

from custom_autograd.checks.agreement import compare_values
from custom_autograd.checks.base import Check, Finding
from custom_autograd.checks.sweeps import layouts
from custom_autograd.checks.targets import Target
from custom_autograd.core.samples import Sample


class Reference(Check):
    """Values against the reference, hidden outputs and written inputs included."""

    name = "reference"
    code = "F01"
    group = "values"
    is_quick = True
    purpose = "values equal those of the reference, in every memory layout"

    def applies_to(self, target: Target) -> str | None:
        """A reference is needed, and something other than it."""
        if target.reference is None:
            return "no reference is registered (register_reference)"
        if set(target.kernels.values()) <= {target.reference}:
            return "the reference is the only kernel"
        return None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per layout."""
        assert target.reference is not None
        for label, variant in layouts(sample, written=target.written_places(sample)):
            yield compare_values(target, target.reference, variant, label, "the reference")
