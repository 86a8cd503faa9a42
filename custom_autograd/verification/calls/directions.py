"""Compare gradients with finite differences along random directions; a few calls, whatever the sizes."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import UNMET
from custom_autograd.verification.harness.base import (
    PASSED,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.causes import find_cause, find_swap, find_uniform_cause
from custom_autograd.verification.harness.comparison import format_pair
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    cotangents_like,
    function_of,
    reference_of,
    require_gradient,
    vector_jacobian,
    with_derivatives,
)
from custom_autograd.verification.harness.numerical import (
    CLOSER,
    FLOAT64,
    Estimate,
    Precision,
    along_one,
    gradient,
    inner,
    precision_of,
)
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.wrong_gradients import look

LARGEST_EXPLAINED = 128
"""Elements of an input whose whole gradient is computed from values, to say why the backward's is another."""

VAGUE = 0.01
"""The error of a finite difference, relative to its distance from the gradient, above which it proves nothing."""

LOOKED_AT = 8
"""Elements of a larger input that are looked at for the same purpose."""


def find_false_direction(target: Target, sample: Sample) -> str | None:
    """Return where a gradient is not what finite differences say; None if it is, or if they say nothing.

    That it is nan is not told: numbers that no sample has may be singular.
    """
    function = find_function(target, sample)
    with contextlib.suppress(Exception):  # whatever the op raises, it was not made for these numbers
        for finding in [] if function is None else look_along(function, ""):
            if finding.status == "failed" and " is nan" not in finding.message:
                return finding.message
    return None


def find_function(target: Target, sample: Sample) -> TensorFunction | None:
    """Return the function of a sample whose gradients are derivatives; None if the op was not made for its numbers."""
    try:
        return with_derivatives(function_of(target, sample))
    except Exception:  # noqa: BLE001 - whatever the op raises, it was not made for these numbers
        return None


def look_along(function: TensorFunction, label: str) -> Iterator[Finding]:
    """Yield a finding for each input: two directions, and what finite differences say of them; kinks are left out.

    Raises:
        NothingToCheckError: no output carries a gradient.
    """
    inputs = tuple(x.detach() for x in function.inputs)
    outputs = function(*function.inputs)
    require_gradient(outputs)
    if not all(bool(torch.isfinite(output).all()) for output in outputs):
        return
    if label and not any(output.numel() for output in outputs):
        return  # a size among the arguments is 0, and indices point to nothing
    cotangents = cotangents_like(outputs)
    try:
        grads = vector_jacobian(function, inputs, cotangents)
    except Exception as error:
        if not label or find_refusal(error) is not None:
            raise
        yield failed(f"{label}the backward raises {first_line(error)}", cause=UNMET)
        return
    try:
        precision = precision_of(function, inputs)
        if label and precision != FLOAT64:
            return  # far out, a kernel that computes in float32 has no finite difference to compare with
        for position in range(len(grads)):
            yield _compare(function, inputs, position, cotangents, grads, precision, label)
    except NothingToCheckError as reason:
        yield skipped(f"{label}{reason}")
    except Exception as error:  # noqa: BLE001 - at the edge of what the op takes, a step leads out
        yield skipped(f"{label}the op refuses a value nearby ({first_line(error)})")


def _compare(
    function: TensorFunction,
    inputs: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    grads: Sequence[Tensor],
    precision: Precision,
    label: str,
) -> Finding:
    name, grad = function.names[position], grads[position]
    for is_random, direction in (
        (True, torch.randn_like(inputs[position])),
        (False, torch.ones_like(inputs[position])),
    ):
        estimate = along_one(function, inputs, position, direction, cotangents, precision)
        if bool(grad.isnan().any()):
            return _judge_nan(function, position, cotangents, estimate, f"{label}the gradient of '{name}' is nan")
        found = inner([grad], [direction])
        size = float(grad.norm() * direction.norm())
        is_right = _is_within(found, estimate, precision, size)
        is_vertical = not math.isfinite(estimate.value) or (estimate.is_steep and precision == FLOAT64)
        is_vague = estimate.error > VAGUE * abs(found - estimate.value)  # several kinks lie within a step
        if estimate.is_kink or is_vertical or is_right or is_vague:
            continue
        closer = [along_one(function, inputs, position, direction, cotangents, FLOAT64, factor=f) for f in CLOSER]
        unlike = abs(found - estimate.value)
        if any(_is_right_closer(found, close, precision, size, unlike) for close in closer):
            continue
        if is_random and _is_at_tie(function, inputs, position, direction, cotangents, precision, estimate, unlike):
            continue
        text = f" ± {estimate.error:.1g} by finite differences"
        pair = format_pair(found, estimate.value, text=text)
        message = f"{label}the gradient of '{name}' along a direction is {pair}"
        cause = ""
        with contextlib.suppress(Exception):  # it has failed, even if the op refuses what this tries
            cause = _cause(function, inputs, position, cotangents, grads, precision)
        return failed(message, cause=cause)
    return PASSED


def _judge_nan(
    function: TensorFunction, position: int, cotangents: Sequence[Tensor], estimate: Estimate, problem: str
) -> Finding:
    """Fail a gradient that is nan, but not at a pole, nor at a kink where the reference's is nan too."""
    if estimate.is_steep:
        return skipped(f"{problem}, where the slope is not finite")
    if function.target.reference is not None and estimate.is_kink:
        reference = reference_of(function)
        if bool(vector_jacobian(reference, reference.inputs, cotangents)[position].isnan().any()):
            return skipped(f"{problem}, as is the reference's")
    return failed(
        f"{problem}, where every output and its slope are finite",
        cause="0 / 0, or inf - inf, perhaps in the branch that torch.where does not choose",
    )


def _is_within(found: float, estimate: Estimate, precision: Precision, size: float) -> bool:
    bound = 10 * estimate.error + precision.absolute + precision.relative * max(abs(estimate.value), 0.1 * size)
    return abs(found - estimate.value) <= bound


def _is_right_closer(found: float, close: Estimate, precision: Precision, size: float, unlike: float) -> bool:
    """Return True if a smaller step agrees: the function bends within the usual one, which may look like rounding.

    What a coarse function answers does not move at all over a small step, and in others a difference may be rounding.
    """
    is_told = (precision == FLOAT64 or close.value != 0) and close.error <= VAGUE * unlike
    return is_told and _is_within(found, replace(close, error=0.0), FLOAT64, size)


def _is_at_tie(
    function: TensorFunction,
    inputs: Sequence[Tensor],
    position: int,
    direction: Tensor,
    cotangents: Sequence[Tensor],
    precision: Precision,
    estimate: Estimate,
    unlike: float,
) -> bool:
    """Return True if slopes do not add up over directions: the slopes of a median of three equal numbers are straight.

    Where all numbers move alike, ties stay ties, and every choice among them has one slope.
    """
    aside = torch.randn_like(direction)
    sides = [
        along_one(function, inputs, position, direction + sign * aside, cotangents, precision) for sign in (1.0, -1.0)
    ]
    error = 10 * (estimate.error + sides[0].error + sides[1].error)
    return abs(sides[0].value + sides[1].value - 2 * estimate.value) > error + VAGUE * unlike


def _cause(
    function: TensorFunction,
    inputs: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    grads: Sequence[Tensor],
    precision: Precision,
) -> str:
    """Return why a gradient is wrong; of a large one, only what holds for a few of its elements alone."""
    if inputs[position].is_complex():
        return ""
    relative = max(100 * precision.relative, 1e-5)
    total = inputs[position].numel()
    if total > LARGEST_EXPLAINED:
        chosen = [i * total // LOOKED_AT for i in range(LOOKED_AT)]
        expected, kinks = gradient(function, inputs, position, cotangents, precision, elements=chosen)
        chosen = [i for i in chosen if not kinks.flatten()[i]]
        return find_uniform_cause(grads[position].flatten()[chosen], expected.flatten()[chosen], relative=relative)
    alike = [i for i, x in enumerate(inputs) if x.shape == inputs[position].shape and not x.is_complex()]
    known = [look(function, inputs, i, cotangents, grads[i], precision).expected for i in alike]
    names, own = [f"the gradient of '{function.names[i]}'" for i in alike], [grads[i] for i in alike]
    at = alike.index(position)
    return find_swap(names, own, known, at, relative=relative) or find_cause(own[at], known[at], relative=relative)
