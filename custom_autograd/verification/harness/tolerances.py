"""How far two results may lie apart, per dtype, with the reason for each figure."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree if |a - b| <= absolute + relative * |b|."""

    relative: float
    absolute: float
    reason: str


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance between two ways to compute the same thing in a dtype; exact for integers and bools."""
    return TOLERANCES.get(dtype, EXACT)


EXACT = Tolerance(0.0, 0.0, "integers and bools have no rounding")

TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(
        1e-7, 1e-7, "2**-53 is 1.1e-16; a kernel may keep a statistic in float32, whose error is 6e-8"
    ),
    torch.float32: Tolerance(1.3e-5, 1e-5, "2**-24 is 6e-8; about 200 roundings, as torch.testing allows"),
    torch.float16: Tolerance(2e-3, 1e-3, "2**-11 is 4.9e-4; four roundings of the result"),
    torch.bfloat16: Tolerance(1.6e-2, 1e-2, "2**-8 is 3.9e-3; four roundings of the result"),
    torch.complex128: Tolerance(1e-7, 1e-7, "as float64, for each part"),
    torch.complex64: Tolerance(1.3e-5, 1e-5, "as float32, for each part"),
}
