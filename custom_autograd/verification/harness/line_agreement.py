"""Whether outputs of a call have the shapes of its line; and the dtype and layout of a fake that follows from it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import DescribedOp, follows_fake
from custom_autograd.shapes.notation import Item, Line, SizeMismatch, place
from custom_autograd.shapes.unification import Sizes
from custom_autograd.verification.harness.sliced_calls import SlicedOutcome, Values


def find_other_shapes(line: Line, sizes: Sizes, outcome: SlicedOutcome) -> Iterator[str]:
    """Yield what outputs do not have of their line, in words."""
    items = {item.name: item for item in line.outputs}
    for (name, position), tensor in outcome.outputs.items():
        if not _fits(items[name], tensor, sizes, position):
            said = f"which is {_shape(items[name], sizes, position)} here"
            yield f"'{name}' has the shape {tuple(tensor.shape)}; the line says {items[name]}, {said}"


def find_other_metadata(
    described: DescribedOp, record: OpRecord, values: Values, outcome: SlicedOutcome
) -> Iterator[str]:
    """Yield what is not as the line, or the fake that follows from it, says, in words."""
    is_fake = follows_fake(described, record, values)
    for (name, _), tensor in outcome.outputs.items():
        if is_fake and not tensor.is_contiguous():
            yield (
                f"'{name}' is not contiguous, and the fake that follows from the line says it is. "
                "Return it contiguous, or register a fake"
            )


def _fits(item: Item, tensor: Tensor, sizes: Sizes, position: int) -> bool:
    try:
        placed = list(place(item, tensor.shape))
    except SizeMismatch:
        return False
    return all(
        size == (sizes.at(dim.names[0], position) if dim.is_many else sizes.size_of(dim, position))
        for dim, size in placed
        if dim.factors
    )


def _shape(item: Item, sizes: Sizes, position: int) -> str:
    """Return the shape that the line says, with what it leaves open as it is written."""
    found: list[str] = []
    for dim in item.dims:
        size = sizes.at(dim.names[0], position) if dim.is_many and dim.factors else None
        if isinstance(size, tuple):
            found += map(str, size)
        else:
            found.append(str(sizes.size_of(dim, position)) if dim.factors else str(dim))
    return f"({', '.join(found)}{',' * (len(found) == 1)})"
