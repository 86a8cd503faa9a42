"""An output that carries no gradient does not depend on inputs that could have one: no derivative is silently zero."""

from collections.abc import Iterable

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import function_of
from custom_autograd.verification.harness.numerical import call_nearby
from custom_autograd.verification.harness.targets import Target


class NonDifferentiable(Check):
    """Outputs without a gradient, before and after the inputs move a little."""

    name = "non_differentiable"
    code = "G13"
    group = "derivatives"
    is_quick = True
    purpose = "no output that depends on an input is without a gradient"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per floating output."""
        function = function_of(target, sample)
        outputs = function(*function.inputs)
        moved = call_nearby(function, torch.randn_like)
        names = ", ".join(f"'{name}'" for name in function.names)
        for output, before, after in zip(function.output_names, outputs, moved, strict=True):
            if before.requires_grad or find_difference([before], [after]) is None:
                yield PASSED
                continue
            yield failed(
                f"{output} depends on {names} but carries no gradient: it is silently zero",
                cause="it is marked non-differentiable, detached, or no backward is registered",
            )
