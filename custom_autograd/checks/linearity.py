"""The backward is linear in the incoming gradient, for both signs and any size: gradcheck cannot see if it is not."""

from collections.abc import Iterable

import torch
from torch import Tensor

from custom_autograd.checks.base import PASSED, Check, Finding, NothingToCheckError
from custom_autograd.checks.comparison import find_difference
from custom_autograd.checks.differentiable import function_of, signed_like, vector_jacobian
from custom_autograd.checks.targets import Target
from custom_autograd.core.samples import Sample

CAUSE = "the backward is not linear in the incoming gradient; abs(), clamp(), a norm or a lower precision does that"


class Linearity(Check):
    """vjp(a u + b v) = a vjp(u) + b vjp(v), vjp(0) = 0, vjp(1e4 u) = 1e4 vjp(u), with u and v of both signs."""

    name = "linearity"
    code = "G04"
    group = "derivatives"
    is_quick = True
    purpose = "the backward is linear in the incoming gradient"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Three identities that every linear map satisfies."""
        function = function_of(target, sample)
        outputs = function(*function.inputs)
        if not any(output.requires_grad for output in outputs):
            raise NothingToCheckError("no output carries a gradient")
        names = [f"gradient of '{name}'" for name in function.names]

        def vjp(cotangents: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return vector_jacobian(function, function.inputs, tuple(cotangents))

        def compare(identity: str, found: Iterable[Tensor], expected: Iterable[Tensor]) -> Finding:
            difference = find_difference(tuple(found), tuple(expected), names=names, factor=10.0)
            return PASSED if difference is None else difference.failed(f"{CAUSE}: {identity}: {difference}")

        u, v = signed_like(outputs), signed_like(outputs)
        of_u, of_v = vjp(u), vjp(v)
        if not all(bool(torch.isfinite(grad).all()) for grad in (*of_u, *of_v)):
            raise NothingToCheckError("a gradient is not finite here")
        mixed = vjp(0.7 * one - 1.9 * other for one, other in zip(u, v, strict=True))
        expected = tuple(0.7 * one - 1.9 * other for one, other in zip(of_u, of_v, strict=True))
        yield compare("vjp(0.7 u - 1.9 v)", mixed, expected)
        yield compare("vjp(0)", vjp(torch.zeros_like(one) for one in u), (torch.zeros_like(one) for one in of_u))
        for scale in (1e4, 1e8, 1e-8):
            scaled = (one / scale for one in vjp(scale * one for one in u))
            yield compare(f"vjp({scale:g} u) / {scale:g}", scaled, of_u)
