"""The backward agrees with autograd through the reference: no finite difference, so kinks and sizes do not matter."""

from collections.abc import Iterable

from custom_autograd.checks.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.checks.comparison import find_difference
from custom_autograd.checks.differentiable import TensorFunction, function_of, signed_like, vector_jacobian
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
        function = function_of(target, sample, is_full=True)
        assert target.reference is not None
        reference = TensorFunction(target, function.sample, function.positions, target.reference)
        expected_outputs = reference(*reference.inputs)
        if not any(output.requires_grad for output in expected_outputs):
            raise NothingToCheckError(
                "the reference itself is not differentiable: it is not written in PyTorch operations"
            )
        visible = function_of(target, sample)
        count = len(visible(*visible.inputs))
        u = signed_like(expected_outputs)
        kept = [one if i < count else one * 0 for i, one in enumerate(u)]
        expected = vector_jacobian(reference, reference.inputs, kept)
        found = vector_jacobian(visible, visible.inputs, u[:count])
        names = [f"gradient of '{name}'" for name in function.names]
        difference = find_difference(found, expected, names=names, factor=10.0)
        yield PASSED if difference is None else failed(f"{difference}, by autograd through the reference")
