"""Forward and backward mode are adjoint: <u, J v> = <Jᵀ u, v>. No finite difference, so the bound is rounding."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    skipped,
)
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    function_of,
    push_forward,
    require_tangents,
    signed_like,
    vector_jacobian,
    with_reference_gradients,
)
from custom_autograd.verification.harness.numerical import FLOAT64, inner, precision_of
from custom_autograd.verification.harness.sweeps import subsets
from custom_autograd.verification.harness.targets import Target

EXACT = 1e-10
"""Relative to the sum of products: rounding in float64, some ten thousand times over."""


class Adjoint(Check):
    """For every subset of the inputs, u and v of both signs."""

    name = "adjoint"
    code = "G08"
    group = "derivatives"
    needs = ("gradcheck", "forward_mode")
    purpose = "the jvp and the backward are adjoint to each other"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per subset; an op without one of the two modes is skipped, with what it says."""
        function = with_reference_gradients(function_of(target, sample))
        require_tangents(function)
        precision = precision_of(function, function.inputs)
        bound = EXACT if precision == FLOAT64 else precision.absolute
        for chosen in subsets(len(function.positions)):
            part = function.restricted_to(chosen)
            v = signed_like(part.inputs)
            try:
                state = RandomState.current()
                tangents = push_forward(part, v)
                u = signed_like(tangents)
                state.restore()
                pulled = vector_jacobian(part, part.inputs, u)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                refusal = find_refusal(error)
                if refusal is None:
                    raise
                yield skipped(f"one of the two modes is missing, and the op raises: {refusal}")
                return
            yield _compare(part, u, v, tangents, pulled, bound)


def _compare(
    function: TensorFunction,
    u: Sequence[Tensor],
    v: Sequence[Tensor],
    tangents: Sequence[Tensor],
    pulled: Sequence[Tensor],
    bound: float,
) -> Finding:
    pushed = inner(u, tangents)
    scale = sum(float(a.abs().max() * b.abs().max() * a.numel()) for a, b in zip(u, tangents, strict=True) if a.numel())
    expected = inner(pulled, v)
    if abs(pushed - expected) <= bound * (1 + scale):
        return PASSED
    if not all(torch.isfinite(row).all() for row in (*tangents, *pulled)):
        raise NothingToCheckError("a derivative is not finite here")
    names = ", ".join(f"'{name}'" for name in function.names)
    return failed(
        f"the jvp and the backward disagree along {names}: <u, J v> = {pushed:.10g}, <J^T u, v> = {expected:.10g}",
        cause="one of the two rules is wrong; gradcheck and forward_mode tell which",
    )
