"""Sizes 0 and 1, sizes next to multiples of a block, and equal ones: values and gradients equal the reference's."""

from collections.abc import Iterable

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import (
    accepted_sizes,
    accepted_tile_sizes,
    compare_values,
    find_gradient_difference,
)
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    function_of,
    reference_of,
    signed_like,
    vector_jacobian,
)
from custom_autograd.verification.harness.surrogates import with_reference_gradients
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.report.headline import NO_REFERENCE


class SizesCheck(Check):
    """The sample with other sizes, as far as the reference takes them."""

    name = "sizes"
    code = "F08"
    group = "layout"
    is_quick = True
    most_samples = 2
    purpose = "values and gradients equal the reference's for sizes 0, 1, odd, of whole vectors and blocks, and larger"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference: it shows which sizes are allowed."""
        return NO_REFERENCE if target.reference is None else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return two findings per variant; those that are refused are left out, but for advice."""
        assert target.reference is not None
        for label, variant in (*accepted_sizes(target, sample), *accepted_tile_sizes(target, sample)):
            finding = compare_values(target, target.reference, copy(variant), label, "the reference")
            if finding.status != "skipped" or finding.advice:
                yield finding
            if finding is PASSED:
                yield _compare_gradients(target, variant, label)


def _raised(error: Exception, reference: TensorFunction, label: str) -> Finding:
    """Return what a backward that raises means: nothing, if that of the reference raises too."""
    try:
        vector_jacobian(reference, reference.inputs, signed_like(reference(*reference.inputs)))
    except Exception as refusal:  # noqa: BLE001 - a reference may have no gradient at every size
        return skipped(f"{label}: the gradient of the reference raises {first_line(refusal)}")
    refused = find_refusal(error)
    if refused is not None:
        return skipped(f"{label}: {refused}")
    return failed(f"{label}: the backward raises {first_line(error)}, where that of the reference does not")


def _compare_gradients(target: Target, sample: Sample, label: str) -> Finding:
    try:
        function = with_reference_gradients(function_of(target, sample))
    except NothingToCheckError:
        return PASSED
    reference = reference_of(function)
    try:
        difference = find_gradient_difference(function, reference)
    except Exception as error:  # noqa: BLE001 - told apart by whether the reference raises too
        return _raised(error, reference, label)
    return PASSED if difference is None else difference.failed(f"{label}: {difference}, by the reference")
