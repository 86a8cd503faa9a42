"""How finely a function answers: the step of a finite difference follows from it, and so do the tolerances.

A kernel that keeps a statistic in float32 answers a float64 input with float32 noise; a step of 1e-6 would measure that
noise, not the derivative. The noise n is measured as the second difference over a step so small that the function
itself is a straight line there. The error of a central difference, n / h + h**2, is least at h = n**(1/3), where it is
about n**(2/3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_autograd.verification.harness.base import NothingToCheckError
from custom_autograd.verification.harness.differentiable import TensorsFunction

STEP = 1e-6
FINE = 1e-10
CURVATURE = (5.0, 300.0)
"""With a tenth of the step a second difference that is curvature falls by a hundred, and one at a kink by ten; noise
stays, or vanishes."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The step of a finite difference and the tolerances of what comes of it."""

    step: float
    absolute: float
    relative: float


def precision_of(function: TensorsFunction, inputs: Sequence[Tensor]) -> Precision:
    """Return the step and the tolerances for a function at a point.

    Raises:
        NothingToCheckError: the function computes in half precision, where a difference says nothing.
    """
    noise = noise_of(function, inputs)
    if noise == 0:
        return FLOAT64
    if noise > 1e-4:
        raise NothingToCheckError(f"its results are only good to {noise:.1g}: a finite difference says nothing")
    return Precision(step=noise ** (1 / 3), absolute=50 * noise ** (2 / 3), relative=50 * noise ** (2 / 3))


def noise_of(function: TensorsFunction, inputs: Sequence[Tensor]) -> float:
    """Return how coarsely a function answers at a point, relative to its results; 0 where it answers in float64."""
    coarsest = max((_rounding(output) for output in function(*inputs)), default=0.0)
    directions = [[torch.randn_like(value) for value in inputs] for _ in range(3)]
    noise = max(coarsest, *(_noise(function, inputs, directions[i], STEP) for i in range(3)))
    smaller = max(coarsest, *(_noise(function, inputs, directions[i], STEP / 10) for i in range(3)))
    if noise < FINE or CURVATURE[0] * smaller < noise < CURVATURE[1] * smaller:
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


def _noise(function: TensorsFunction, inputs: Sequence[Tensor], directions: Sequence[Tensor], size: float) -> float:
    """Return the second difference of each output over a small step, relative to the output's size; the largest."""
    steps = [size * direction for direction in directions]
    with torch.no_grad():
        above = function(*(value.detach() + step for value, step in zip(inputs, steps, strict=True)))
        below = function(*(value.detach() - step for value, step in zip(inputs, steps, strict=True)))
        middle = function(*(value.detach().clone() for value in inputs))
    noises = [
        float(((a - m) - (m - b)).abs().max() / (1 + m.abs().max()))
        for a, m, b in zip(above, middle, below, strict=True)
        if m.numel() and all(bool(torch.isfinite(y).all()) for y in (a, m, b))
    ]
    return max(noises, default=0.0)


FLOAT64 = Precision(step=1e-6, absolute=1e-6, relative=1e-5)
"""gradcheck's own step; its error is about 1e-10 in float64, so the tolerances leave room."""
