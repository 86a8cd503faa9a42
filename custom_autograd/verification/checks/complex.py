"""Gradients of complex inputs follow PyTorch's convention: the conjugate Wirtinger derivative."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import TO_SAY, only_a_kernel_refuses
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
    cotangents_like,
    function_of,
    vector_jacobian,
    with_derivatives,
)
from custom_autograd.verification.harness.numerical import Estimate, along, inner, precision_of
from custom_autograd.verification.harness.targets import Target, call_on

DIRECTIONS = 3

ADVICE = "no sample is complex, so this is advice"

EstimateAlong: TypeAlias = Callable[[Sequence[Tensor | None]], Estimate]
"""A directional derivative by finite differences, given one direction per input."""


class Complex(Check):
    """A real sample made complex if the op takes it; what is found there is advice, since it is not declared."""

    name = "complex"
    code = "G10"
    group = "derivatives"
    purpose = "complex gradients are conjugate Wirtinger derivatives"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per input, along real, imaginary and mixed directions."""
        is_declared = any(tensor.is_complex() for tensor in sample.tensors())
        changed = _made_complex(target, sample)
        function = with_derivatives(function_of(target, changed))
        inputs = tuple(x.detach() for x in function.inputs)
        outputs = function(*function.inputs)
        if not any(output.requires_grad for output in outputs):
            raise NothingToCheckError("no output carries a gradient")
        cotangents = cotangents_like(outputs)
        try:
            grads = vector_jacobian(function, inputs, cotangents)
        except Exception as error:
            if is_declared or find_refusal(error) is not None:
                raise
            found = f"the backward raises {first_line(error)}; let the kernel refuse complex numbers too"
            yield skipped(f"{ADVICE}: {found}")
            return
        precision = precision_of(function, inputs)
        for position, name in enumerate(function.names):
            finding = _check(
                inputs, position, name, grads[position], lambda v: along(function, inputs, v, cotangents, precision)
            )
            yield finding if is_declared or finding is PASSED else skipped(f"{ADVICE}: {finding.message}")


def _made_complex(target: Target, sample: Sample) -> Sample:
    """Return the sample with complex numbers in it.

    Raises:
        NothingToCheckError: the op refuses them, or does not answer in complex numbers.
    """
    if any(tensor.is_complex() for tensor in sample.tensors()):
        return sample
    if target.reference is None:
        raise NothingToCheckError(
            "no sample is complex, and no reference shows that the op is meant for complex numbers"
        )
    changed = sample.map(_with_imaginary_part)
    try:
        with torch.no_grad():
            outputs = call_on(target.call, changed.map(torch.clone))
            call_on(target.reference, changed.map(torch.clone))
    except Exception as error:
        advice = TO_SAY if only_a_kernel_refuses(target, changed) else ""
        raise NothingToCheckError(f"the op takes no complex numbers: {first_line(error)}{advice}") from error
    if not outputs or not all(output.is_complex() for output in outputs):
        raise NothingToCheckError("the op does not answer in complex numbers")
    return changed.map(lambda x: x.requires_grad_(x.is_complex()))


def _with_imaginary_part(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    real = tensor.detach().double()
    return torch.complex(real, torch.randn_like(real))


def _check(
    inputs: tuple[Tensor, ...], position: int, name: str, grad: Tensor, estimate_along: EstimateAlong
) -> Finding:
    for _ in range(DIRECTIONS):
        direction = torch.randn_like(inputs[position])
        estimate = estimate_along([direction if i == position else None for i in range(len(inputs))])
        found, conjugate = inner([grad], [direction]), inner([grad.conj()], [direction])
        bound = 10 * estimate.error + 1e-6 + 1e-5 * float(grad.norm() * direction.norm())
        if estimate.is_kink or abs(found - estimate.value) <= bound:
            continue
        is_conjugate = abs(conjugate - estimate.value) <= bound
        return failed(
            f"complex gradient of '{name}' along a direction is {found:.6g}, expected {estimate.value:.6g}: "
            "conjugate what the backward multiplies with, or let the kernel refuse complex numbers",
            cause="a conj() is missing, or there is one too many" if is_conjugate else "",
        )
    return PASSED
