"""The backward agrees with autograd through the reference: no finite difference, so kinks and sizes do not matter."""

from collections.abc import Iterable, Iterator

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import find_gradient_difference
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError
from custom_autograd.verification.harness.differentiable import function_of, reference_of, vector_jacobian
from custom_autograd.verification.harness.domain import within_domain
from custom_autograd.verification.harness.surrogates import with_reference_gradients
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.variants import scalars, small_values
from custom_autograd.verification.report.headline import NO_REFERENCE


class ReferenceGradients(Check):
    """Gradients against those of the reference, for cotangents of both signs."""

    name = "reference_gradients"
    code = "G07"
    group = "derivatives"
    is_quick = True
    purpose = "gradients equal those of autograd through the reference, for other scalars and small numbers too"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference."""
        if target.reference is None:
            return NO_REFERENCE
        return None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one comparison of all inputs together, and one for each other scalar and for small numbers."""
        function = with_reference_gradients(function_of(target, sample))
        reference = reference_of(function)
        if not any(output.requires_grad for output in reference(*reference.inputs)):
            raise NothingToCheckError(
                "the reference itself is not differentiable: it is not written in PyTorch operations"
            )
        difference = find_gradient_difference(function, reference)
        yield PASSED if difference is None else difference.failed(f"{difference}, by autograd through the reference")
        for label, variant in within_domain(target, sample, scalars(sample, target.arguments)):
            yield from _compare_variant(target, variant, label, is_scaled=False)
        for label, variant in small_values(sample):
            yield from _compare_variant(target, variant, label, is_scaled=True)


def _compare_variant(target: Target, sample: Sample, label: str, *, is_scaled: bool) -> Iterator[Finding]:
    """Compare the gradients, unless the reference or the op refuses the call, or the expected ones are not finite."""
    try:
        function = with_reference_gradients(function_of(target, sample))
        reference = reference_of(function)
        outputs = reference(*reference.inputs)
        expected = vector_jacobian(reference, reference.inputs, [torch.ones_like(y) for y in outputs])
    except Exception:  # noqa: BLE001 - these numbers are not the sample's: it may have its reasons to refuse them
        return
    if not all(bool(torch.isfinite(x).all()) for x in (*outputs, *expected)):
        return
    difference = find_gradient_difference(function, reference, is_scaled=is_scaled)
    text = f"{label}: {difference}, by autograd through the reference"
    yield PASSED if difference is None else difference.failed(text)
