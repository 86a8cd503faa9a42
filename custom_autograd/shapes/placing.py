"""Places the sizes of a tensor at the dimensions of its item, from the left and, behind a group, from the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from custom_autograd.shapes.notation import Dim, Item

Shape: TypeAlias = Sequence[int]
"""The sizes of a tensor; symbolic ones while a graph is traced."""

Size: TypeAlias = int | tuple[int, ...]
"""The size of a dimension, or those of a group."""


class SizeMismatch(Exception):  # noqa: N818 - it becomes a ShapeError of the op
    """A tensor does not have the dimensions of its line.

    Attributes:
        name: of the tensor.
        problem: what is wrong.
        expected: what would have been right.
        found: the shape.
    """

    def __init__(self, name: str, problem: str, expected: str, found: Shape) -> None:
        super().__init__(problem)
        self.name, self.problem, self.expected = name, problem, expected
        self.found = str(tuple(found))


def place(item: Item, shape: Shape) -> Iterator[tuple[Dim, Size | None]]:
    """Yield each dimension of an item with its size: a tuple for a group, None for one that is absent.

    Raises:
        SizeMismatch: the tensor has too few or too many dimensions.
    """
    group, most = item.group, len(item.dims)
    least = most - 1 if group is not None else most - item.absent
    if len(shape) < least or (group is None and len(shape) > most):
        many = "at least " if group is not None else ""
        several = f"{least} to {most}" if group is None and least != most else str(least)
        expected = f"{many}{several} dimension{'' if several == '1' else 's'}"
        raise SizeMismatch(item.name, f"'{item.name}' must be {item}", expected, shape)
    if group is None:
        absent = most - len(shape)
        yield from zip(item.dims, (*[None] * absent, *shape), strict=True)
        return
    behind = len(shape) - (most - group - 1)
    yield from zip(item.dims[:group], shape[:group], strict=True)
    yield item.dims[group], tuple(shape[group:behind])
    yield from zip(item.dims[group + 1 :], shape[behind:], strict=True)
