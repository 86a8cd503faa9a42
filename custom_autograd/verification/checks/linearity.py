"""Derivatives are linear maps: the backward in the incoming gradient, and forward and backward mode adjoint.

No finite difference is taken, so the bounds are rounding, and gradcheck cannot see what is found here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    refusal_or_raise,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference, judged, tolerance_of
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    function_of,
    push_forward,
    require_gradient,
    require_tangents,
    signed_like,
    vector_jacobian,
    with_reference_gradients,
)
from custom_autograd.verification.harness.numerical import FLOAT64, inner, noise_of, precision_of
from custom_autograd.verification.harness.sweeps import subsets
from custom_autograd.verification.harness.targets import Target

CAUSE = "the backward is not linear in the incoming gradient; abs(), clamp(), a norm or a lower precision does that"


class Linearity(Check):
    """vjp(a u + b v) = a vjp(u) + b vjp(v), vjp(0) = 0, vjp(c u) = c vjp(u) for c from 2**-1024 to 1e300."""

    name = "linearity"
    code = "G04"
    group = "derivatives"
    is_quick = True
    purpose = "the backward is linear in the incoming gradient"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Check identities that every linear map satisfies; extreme cotangents only if the op computes in float64."""
        function = with_reference_gradients(function_of(target, sample))
        outputs = function(*function.inputs)
        require_gradient(outputs)
        names = [f"gradient of '{name}'" for name in function.names]

        probe = _probe_of(outputs)

        def vjp(cotangents: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return vector_jacobian(function, function.inputs, tuple(cotangents))

        def compare(identity: str, found: Iterable[Tensor], expected: Iterable[Tensor]) -> Finding:
            difference = find_difference(tuple(found), tuple(expected), names=names, factor=probe.factor)
            return judged(difference, f"{CAUSE}: {identity}: {{}}")

        u, v = probe.u, probe.v
        of_u, of_v = vjp(u), vjp(v)
        if not all(bool(torch.isfinite(grad).all()) for grad in (*of_u, *of_v)):
            raise NothingToCheckError("a gradient is not finite here")
        mixed = vjp(probe.mix(one, other) for one, other in zip(u, v, strict=True))
        expected = tuple(probe.mix(one, other) for one, other in zip(of_u, of_v, strict=True))
        yield compare(f"vjp({probe.a:g} u - {probe.b:g} v)", mixed, expected)
        yield compare("vjp(0)", vjp(torch.zeros_like(one) for one in u), (torch.zeros_like(one) for one in of_u))
        for scale in probe.scales:
            scaled = (one / scale for one in vjp(scale * one for one in u))
            yield compare(f"vjp({scale:g} u) / {scale:g}", scaled, of_u)
        for scale in _extreme_scales(outputs):
            extreme = tuple(_divided(one, scale) for one in vjp(scale * one for one in u))
            if not all(bool(torch.isfinite(one).all()) for one in extreme):
                return  # it overflows on the way, or in a narrower dtype
            identity = f"vjp({scale:g} u) / {scale:g}"
            finding = compare(identity, extreme, of_u)
            kept = [torch.where(one == 0, other, one) for one, other in zip(extreme, of_u, strict=True)]
            if finding is not PASSED and scale == SUBNORMAL and compare(identity, kept, of_u) is PASSED:
                yield skipped(FLUSHED)
            elif finding is PASSED or noise_of(function, function.inputs) == 0:
                yield finding


@dataclass(frozen=True, slots=True)
class Probe:
    """Cotangents u and v, the a and b of a u - b v, the scales of u, and what widens the tolerance."""

    u: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    a: float = 0.7
    b: float = 1.9
    scales: tuple[float, ...] = (1e4, 1e8, 1e-8)
    factor: float = 10.0

    def mix(self, one: Tensor, other: Tensor) -> Tensor:
        """Return a u - b v."""
        return self.a * one - self.b * other


def _extreme_scales(outputs: Sequence[Tensor]) -> tuple[float, ...]:
    """Return what makes numbers of order 1 almost as large as float64 goes, and subnormal; none for other dtypes."""
    if any(output.dtype not in (torch.float64, torch.complex128) for output in outputs):
        return ()
    is_flushed = bool(outputs[0].new_full((), SUBNORMAL) * 1 == 0)  # torch.set_flush_denormal, or -ffast-math
    return (1e300,) if is_flushed else (1e300, SUBNORMAL)


def _divided(tensor: Tensor, scale: float) -> Tensor:
    """Divide by multiplying, in two steps: the reciprocal of a subnormal number is infinite."""
    return tensor * 2.0**512 * (2.0**-512 / scale) if scale < 1 else tensor * (1 / scale)


SUBNORMAL = 2.0**-1024
"""Times a number of order 1 it keeps nearly all bits, and is less than the least normal float64, 2**-1022."""


FLUSHED = "gradients of less than 2.2e-308 become zero, as in libraries that flush subnormal numbers"


def _probe_of(outputs: Sequence[Tensor]) -> Probe:
    """Return random numbers; where an output is coarser than float32, such as it holds exactly, sums and all."""
    coarsest = max((torch.finfo(output.dtype) for output in outputs), key=lambda row: row.eps)
    if coarsest.eps <= torch.finfo(torch.float32).eps:
        return Probe(signed_like(outputs), signed_like(outputs))
    u, v = (tuple(torch.randint_like(y, -8, 9) / 4 for y in outputs) for _ in range(2))
    least, most = coarsest.tiny * 4, coarsest.max / 2  # u lies between 1 / 4 and 2
    scales = tuple(2.0**n for n in (13, 27, -27, -10) if least < 2.0**n < most)
    relative = tolerance_of(getattr(torch, coarsest.dtype)).relative
    return Probe(u, v, 0.5, 2.0, scales, relative / tolerance_of(torch.float64).relative)


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
                refusal = refusal_or_raise(error)
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
