"""The backward agrees with autograd through the reference: no finite difference, so kinks and sizes do not matter."""

from collections.abc import Iterable

from custom_autograd.checks.agreement import find_gradient_difference
from custom_autograd.checks.base import PASSED, Check, Finding, NothingToCheckError
from custom_autograd.checks.differentiable import function_of, reference_of
from custom_autograd.checks.targets import Target
from custom_autograd.core.samples import Sample


class ReferenceGradients(Check):
    """Gradients against those of the reference, for cotangents of both signs."""

    name = "reference_gradients"
    code = "G07"
    group = "derivatives"
    is_quick = True
    purpose = "gradients equal those of autograd through the reference"

    def applies_to(self, target: Target) -> str | None:
        """A reference is needed."""
        if target.reference is None:
            return "no reference is registered (register_reference)"
        return None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One comparison, of all inputs together."""
        function = function_of(target, sample)
        reference = reference_of(function)
        if not any(output.requires_grad for output in reference(*reference.inputs)):
            raise NothingToCheckError(
                "the reference itself is not differentiable: it is not written in PyTorch operations"
            )
        difference = find_gradient_difference(function, reference)
        yield PASSED if difference is None else difference.failed(f"{difference}, by autograd through the reference")
