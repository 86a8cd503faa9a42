"""Derivatives from values alone: central differences of two steps, with an error bound, and kinks distinguished.

For smooth functions the Richardson extrapolation R = (4 D(h/2) - D(h)) / 3 of central differences D has an error of
order h⁴, and |R - D(h/2)| bounds it. At a kink, the one-sided differences keep their distance however small the step;
where the function is smooth the distance halves with it. A central difference at a kink is the mean of both sides:
precise, and wrong.

A kernel that keeps a statistic in float32 answers a float64 input with float32 noise; a step of 1e-6 would measure that
noise, not the derivative. The noise n is measured as the second difference over a step so small that the function
itself is a straight line there. The error of a central difference, n / h + h**2, is least at h = n**(1/3), where it is
about n**(2/3).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from custom_autograd.verification.harness.base import NothingToCheckError, first_line
from custom_autograd.verification.harness.differentiable import TensorFunction, TensorsFunction, signed_like

NOISE_STEP = 1e-6
FINE = 1e-10
ASIDE = 3e-7
"""How far the middle of a second difference is from the point, relative to it: around a number of float32 each number
is rounded as its mirror image is, so that no difference shows it."""

FEW = 8
"""Elements of the results up to which more directions are taken: a few rounded numbers lie on a line by chance."""

CURVATURE = (5.0, 300.0)
"""With a tenth of the step a second difference that is curvature falls by a hundred, and one at a kink by ten; noise
stays, or vanishes, or falls by chance as rounded numbers do. With ten times the step the others grow."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The step of a finite difference and the tolerances of what comes of it."""

    step: float
    absolute: float
    relative: float


def precision_of(function: TensorsFunction, inputs: Sequence[Tensor]) -> Precision:
    """Return the step and the tolerances for a function at a point.

    Raises:
        NothingToCheckError: the function computes in half precision, where a difference says nothing; or its results
            have another size a little aside.
    """
    noise = noise_of(function, inputs)
    if noise == 0:
        return FLOAT64
    if noise > 1e-4:
        raise NothingToCheckError(f"its results are only good to {noise:.1g}: a finite difference says nothing")
    return Precision(step=noise ** (1 / 3), absolute=50 * noise ** (2 / 3), relative=50 * noise ** (2 / 3))


def noise_of(function: TensorsFunction, inputs: Sequence[Tensor]) -> float:
    """Return how coarsely a function answers at a point, relative to its results; 0 where it answers in float64."""
    outputs = function(*inputs)
    coarsest = max((_rounding(output) for output in outputs), default=0.0)
    count = 12 if sum(output.numel() for output in outputs) <= FEW else 3
    directions = [[torch.randn_like(value) for value in inputs] for _ in range(count)]

    def largest(size: float) -> float:
        return max(coarsest, *(_noise(function, inputs, direction, size, outputs) for direction in directions))

    noise = largest(NOISE_STEP)
    if noise < FINE:
        return 0.0
    if CURVATURE[0] * (smaller := largest(NOISE_STEP / 10)) < noise < CURVATURE[1] * smaller:
        larger = largest(10 * NOISE_STEP)
        if not larger or CURVATURE[0] * noise < larger:  # 0 where the function is not finite so far out
            return 0.0
    return noise


def hidden_noise(function: TensorsFunction, inputs: Sequence[Tensor]) -> float:
    """Return the least noise at three points of a function that answers in float64; 0 if its dtype explains it."""
    points = [tuple(x.detach() for x in inputs)]
    points += [tuple(x * (1 + 1e-3 * torch.randn_like(x)) for x in points[0]) for _ in range(2)]
    with torch.no_grad():
        first, second = function(*points[0]), function(*points[0])
        is_told = any(_rounding(output) > 0 for output in first)
        is_random = any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return 0.0 if is_told or is_random else min(noise_of(function, point) for point in points)


def _rounding(output: Tensor) -> float:
    """Return what one rounding in the output's dtype makes, relative to its size; 0 for the widest."""
    return 0.0 if output.dtype in (torch.float64, torch.complex128) else torch.finfo(output.dtype).eps / 2


def _noise(
    function: TensorsFunction,
    inputs: Sequence[Tensor],
    directions: Sequence[Tensor],
    size: float,
    outputs: Sequence[Tensor],
) -> float:
    """Return the second difference of each output over a small step, relative to the output's size; the largest."""
    pairs = list(zip(inputs, directions, strict=True))
    with torch.no_grad():
        above, middle, below = (
            function(*(x.detach() * (1 + ASIDE * step) + sign * size * step for x, step in pairs))
            for sign in (1, 0, -1)
        )
    if any(y.shape != here.shape for row in (above, middle, below) for y, here in zip(row, outputs, strict=True)):
        raise NothingToCheckError(ANOTHER_SIZE)
    noises = [
        float(((a - m) - (m - b)).abs().max() / (1 + m.abs().max()))
        for a, m, b in zip(above, middle, below, strict=True)
        if m.numel() and all(bool(torch.isfinite(y).all()) for y in (a, m, b))
    ]
    return max(noises, default=0.0)


ANOTHER_SIZE = "next to the sample, a result has another size; give a sample whose numbers may change a little"

FLOAT64 = Precision(step=1e-6, absolute=1e-6, relative=1e-5)
"""gradcheck's own step; its error is about 1e-10 in float64, so the tolerances leave room."""


STEP = 1e-3
"""For functions good to float64: h⁴ is 1e-12, and rounding adds 1e-16 / h = 1e-13."""

STEP_OF_FLOAT64 = 1e-6
"""The step of `precision_of` for functions good to float64; coarser ones have no finer step."""

FINER = (1e-3, 1e-6, 1e-9, 1e-12)
"""Factors of the step where the slope grows as the step shrinks: a norm with an eps of 1e-12 is straight only there."""

CLOSER = (1e-3, 1e-6)
"""Factors of the step with which a disagreement is looked at once more: the function may bend within the step."""

NOISE = 1e-10
"""What a difference is at least, relative to the results, that is not made of rounding."""

NEARBY = (1e-3, 1e-5, 1e-7)
"""How far a function is moved to see whether it changes; less where it refuses what lies further away."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A directional derivative.

    Args:
        value: the best estimate.
        error: a bound of its error, from the disagreement of two steps.
        is_kink: whether the function has a kink there, in this direction.
        is_steep: whether the slope grows as the step shrinks: there is no finite one.
        is_finer: whether a smaller step than usual was needed to find one.
    """

    value: float
    error: float
    is_kink: bool
    is_steep: bool = False
    is_finer: bool = False


def along(
    function: TensorsFunction,
    inputs: Sequence[Tensor],
    directions: Sequence[Tensor | None],
    cotangents: Sequence[Tensor],
    precision: Precision,
    *,
    factor: float = 1.0,
) -> Estimate:
    """Return d/dt of Re <cotangents, function(inputs + t directions)> at t = 0.

    Args:
        function: tensors in, tensors out.
        inputs: the point.
        directions: one per input; None if it does not move.
        cotangents: one per output.
        precision: how finely the function answers.
        factor: of the usual step.
    """
    size = max((float(x.abs().max()) for x in inputs if x.numel()), default=1.0)
    step = (STEP if precision.step <= STEP_OF_FLOAT64 else 2 * precision.step) * min(max(size, 1e-2), 1.0) * factor

    def value(t: float) -> float:
        moved = [x if v is None else x + t * v for x, v in zip(inputs, directions, strict=True)]
        results = function(*moved)
        if [y.shape for y in results] != [u.shape for u in cotangents]:
            raise NothingToCheckError("the size of the results changes nearby, so that they have no difference")
        return inner(cotangents, results)

    with torch.no_grad():
        estimate = _estimate(value, step)
        if not estimate.is_steep or estimate.is_kink or precision.step > STEP_OF_FLOAT64:
            return estimate
        if abs(estimate.value) * step < NOISE * _size_of(cotangents, function(*inputs)):
            return replace(estimate, is_steep=False)  # rounding, which is as steep
        finer = [replace(_estimate(value, factor * step), is_finer=True) for factor in FINER]
        return min((found for found in finer if not found.is_steep), key=lambda found: found.error, default=estimate)


def along_one(
    function: TensorsFunction,
    inputs: Sequence[Tensor],
    position: int,
    direction: Tensor,
    cotangents: Sequence[Tensor],
    precision: Precision,
    *,
    factor: float = 1.0,
) -> Estimate:
    """Return `along` for a direction of one input, while the others do not move."""
    directions = [direction if i == position else None for i in range(len(inputs))]
    return along(function, inputs, directions, cotangents, precision, factor=factor)


def _size_of(cotangents: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Return the sum of the sizes of all terms of an inner product."""
    return sum(float((u.abs() * y.detach().abs()).sum()) for u, y in zip(cotangents, outputs, strict=True))


def _estimate(value: Callable[[float], float], step: float) -> Estimate:
    middle = value(0.0)
    (far_up, far_down), (up, down) = ((value(t) - middle, middle - value(-t)) for t in (step, step / 2))
    wide, narrow = (far_up + far_down) / (2 * step), (up + down) / step
    best = (4 * narrow - wide) / 3
    jump, smaller = abs(far_up - far_down) / step, abs(up - down) / (step / 2)
    scale = abs(far_up) / step + abs(far_down) / step
    is_kink = smaller > 0.75 * jump and smaller > 1e-4 * scale
    steepness = abs(up) + abs(down), abs(far_up) + abs(far_down)
    is_steep = not math.isfinite(best) or steepness[0] > 0.6 * steepness[1] > 0
    return Estimate(best, abs(best - narrow) + 1e-15 * abs(middle) / step, is_kink, is_steep)


def gradient(
    function: TensorsFunction,
    inputs: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    precision: Precision,
    *,
    elements: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of Re <cotangents, function> for one real input, element by element, and where it has a kink.

    Args:
        function: tensors in, tensors out.
        inputs: the point.
        position: of the input.
        cotangents: one per output.
        precision: how finely the function answers.
        elements: flat indices of the elements that are looked at; the others are 0. All by default.
    """
    values = torch.zeros_like(inputs[position]).flatten()
    kinks = torch.zeros_like(values, dtype=torch.bool)
    for index in range(values.numel()) if elements is None else elements:
        unit = torch.zeros_like(values)
        unit[index] = 1
        estimate = along_one(function, inputs, position, unit.view(inputs[position].shape), cotangents, precision)
        values[index], kinks[index] = estimate.value, estimate.is_kink
    return values.view(inputs[position].shape), kinks.view(inputs[position].shape)


def has_kink(function: TensorFunction, precision: Precision) -> bool:
    """Return True if a function of real tensors has a kink at its inputs: its backward then has no derivative."""
    return any(estimate.is_kink for estimate in _estimates(function, precision))


def needs_finer_step(function: TensorFunction, precision: Precision) -> bool:
    """Return True if a function of real tensors bends within the usual step, as a norm does near zero."""
    return any(estimate.is_finer or estimate.is_steep for estimate in _estimates(function, precision))


def _estimates(function: TensorFunction, precision: Precision) -> Iterator[Estimate]:
    """Yield the derivative along three directions of all inputs; none for complex ones."""
    inputs = [x.detach() for x in function.inputs]
    if any(x.is_complex() for x in inputs):
        return
    cotangents = signed_like(function(*inputs))
    for _ in range(3):
        yield along(function, inputs, signed_like(inputs), cotangents, precision)


def differences(
    function: TensorsFunction, inputs: Sequence[Tensor], directions: Sequence[Tensor], step: float
) -> tuple[Tensor, ...]:
    """Return the central difference of each result along one direction of all inputs."""
    above = function(*(x.detach() + step * v for x, v in zip(inputs, directions, strict=True)))
    below = function(*(x.detach() - step * v for x, v in zip(inputs, directions, strict=True)))
    return tuple((high - low) / (2 * step) for high, low in zip(above, below, strict=True))


def call_nearby(function: TensorFunction, move: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """Return the results of a function a little aside.

    Args:
        function: takes the inputs of its sample.
        move: the direction for one input.

    Raises:
        NothingToCheckError: if the function refuses everything that lies nearby: values below 0, as a rule.
    """
    directions = [move(x.detach()) for x in function.inputs]
    error: Exception | None = None
    for step in NEARBY:
        moved = [x.detach() + step * v for x, v in zip(function.inputs, directions, strict=True)]
        try:
            with torch.no_grad():
                return function(*moved)
        except Exception as refusal:  # noqa: BLE001 - it takes the sample, so that it refuses these numbers
            error = refusal
    assert error is not None
    raise NothingToCheckError(f"the op refuses values nearby ({first_line(error)})")


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return the real inner product over all tensors."""
    return sum(float((a.conj() * b.detach()).real.sum()) for a, b in zip(left, right, strict=True))
