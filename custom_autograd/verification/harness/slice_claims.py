"""What a line claims of one tensor of a call that is cut: its slices are side by side, add up, or are all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.slices import Bounds, Spot

FACTOR = 10.0
"""How much wider than that of the dtype the tolerance is: slices are summed in another order."""

MEAN = "the whole is their mean"
WHOLE = "each slice gives the whole"


@dataclass(frozen=True, slots=True)
class Broken:
    """A claim that does not hold.

    Attributes:
        problem: which tensor of the slices is not that of the whole.
        reason: what it is instead, in a few words; empty if unknown.
        difference: the element that differs most.
    """

    problem: str
    reason: str = ""
    difference: str = ""

    @property
    def text(self) -> str:
        """Return the problem with what is known of it."""
        known = self.reason or self.difference
        return f"{self.problem}: {known}" if known else self.problem


def find_broken(
    title: str,
    whole: Tensor,
    slices: Sequence[Tensor],
    spot: Spot | None,
    bounds: Sequence[Bounds],
    *,
    is_written: bool,
) -> Broken | None:
    """Return why the slices of a tensor are not what the line claims, or None if they are.

    Args:
        title: what messages call the tensor, or the argument that is written to.
        whole: it, of the whole call.
        slices: it, of each slice.
        spot: where it has the dimension that is cut; None if it lacks it.
        bounds: of the slices.
        is_written: the op writes to it.
    """
    if spot is not None:
        return _side_by_side(title, whole, slices, spot, bounds)
    if is_written:
        return _alike(title, whole, slices)
    return _added(title, whole, slices)


def _side_by_side(
    title: str, whole: Tensor, slices: Sequence[Tensor], spot: Spot, bounds: Sequence[Bounds]
) -> Broken | None:
    difference = _difference(spot.join(slices, bounds), whole)
    if difference is None:
        return None
    problem = f"the slices of {title}, side by side, are not the whole"
    backwards = spot.join(slices[::-1], bounds[::-1])
    reason = "they are in the reverse order" if _is_near(backwards, whole) else ""
    return Broken(problem, reason, difference)


def _alike(title: str, whole: Tensor, slices: Sequence[Tensor]) -> Broken | None:
    if all(_is_near(one, whole) for one in slices):
        return None
    return Broken(f"slices write something else to {title}, which lacks the dimension, than the whole")


def _added(title: str, whole: Tensor, slices: Sequence[Tensor]) -> Broken | None:
    total = torch.stack(tuple(slices)).sum(0, dtype=whole.dtype)
    difference = _difference(total, whole)
    if difference is None:
        return None
    return Broken(f"the slices of {title} do not add up", _reason(whole, slices, total), difference)


def _reason(whole: Tensor, slices: Sequence[Tensor], total: Tensor) -> str:
    """Return what the whole is of the slices, if it is not their sum."""
    if all(_is_near(one, whole) for one in slices):
        return WHOLE
    if not whole.is_floating_point():
        return ""
    stacked = torch.stack(tuple(slices))
    if _is_near(total / len(slices), whole):
        return MEAN
    return next((reason for reason, combine in COMBINATIONS if _is_near(combine(stacked), whole)), "")


def _difference(found: Tensor, whole: Tensor) -> str | None:
    difference = find_difference([found], [whole], names=[""], factor=FACTOR)
    return None if difference is None else ("element " + str(difference)).removeprefix("element  = ")


def _is_near(found: Tensor, whole: Tensor) -> bool:
    return found.shape == whole.shape and _difference(found.to(whole.dtype), whole) is None


COMBINATIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("the whole is their maximum", lambda stacked: stacked.amax(0)),
    ("the whole is their minimum", lambda stacked: stacked.amin(0)),
    ("the whole is their product", lambda stacked: stacked.prod(0)),
    ("the whole is their logsumexp", lambda stacked: stacked.logsumexp(0)),
)
