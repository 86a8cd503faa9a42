"""Numbers at the ends of the range that the author gave to `make`, within it, and outside of it."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from custom_autograd.verification.calls.numbers import OTHER_SIGN, TWENTY

OUTSIDE = ", outside of its range"


def at_ends(tensor: Tensor, bounds: tuple[float, float]) -> Tensor | None:
    """Return the tensor with the first number of a range at its beginning, and in its middle the last one below."""
    if tensor.is_complex() or tensor.numel() < 2 or not all(map(math.isfinite, bounds)):
        return None
    found = tensor.clone(memory_format=torch.contiguous_format)
    low, high = (torch.tensor(bound, dtype=tensor.dtype) for bound in bounds)
    found.view(-1)[:: tensor.numel() // 2][:2] = torch.stack([low, torch.nextafter(high, low)]).to(tensor.device)
    return found


def within_range(
    change: Callable[[Tensor], Tensor | None], bounds: tuple[float, float] | None
) -> Callable[[Tensor], Tensor | None]:
    """Return a change that does not fit where it leaves the range that the author gave to `make`."""
    if bounds is None:
        return change

    def changed(tensor: Tensor) -> Tensor | None:
        found = change(tensor)
        if found is None or found.is_complex():
            return found
        return found if bool(((found >= bounds[0]) & (found <= bounds[1])).all()) else None

    return changed


def outside(bounds: tuple[float, float]) -> Iterator[tuple[str, Callable[[Tensor], Tensor | None]]]:
    """Yield changes that leave the range that the author gave to `make`."""

    def larger(tensor: Tensor) -> Tensor | None:
        is_within = within_range(lambda x: x * 20, bounds)(tensor) is not None
        return None if is_within else tensor * 20  # of complex numbers only the parts have a range

    def negative(tensor: Tensor) -> Tensor | None:
        return None if tensor.is_complex() else -tensor

    yield f"{TWENTY}{OUTSIDE}", larger
    if bounds[0] >= 0:
        yield f"{OTHER_SIGN}{OUTSIDE}", negative
