"""Slices of the tensors of a call along one dimension of its line: where each tensor has it, and how it is cut.

x: n (2 h)      along n: x.narrow(0, start, size)      along h: x.unflatten(1, (2, h)).narrow(2, start, size)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.shapes.notation import Dim, Item, Line, Size, place
from custom_autograd.shapes.unification import Sizes

Key: TypeAlias = tuple[str, int]
"""One tensor of a call: the name of the argument or the output, and its position in a list (0 if it is not one)."""

Bounds: TypeAlias = tuple[int, int]
"""Where a slice begins and ends."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a tensor has the dimension that is cut.

    Attributes:
        axis: of the tensor.
        factors: the sizes of the factors whose product that dimension is.
        position: of the cut one among them.
    """

    axis: int
    factors: tuple[int, ...]
    position: int

    def slice(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        """Return a slice of a tensor."""
        start, end = bounds
        factors = tensor.unflatten(self.axis, self.factors)
        return self._flat(factors.narrow(self.axis + self.position, start, end - start))

    def join(self, slices: Sequence[Tensor], bounds: Sequence[Bounds]) -> Tensor:
        """Return the slices side by side."""
        before, after = self.factors[: self.position], self.factors[self.position + 1 :]
        parts = [
            tensor.unflatten(self.axis, (*before, end - start, *after))
            for tensor, (start, end) in zip(slices, bounds, strict=True)
        ]
        return self._flat(torch.cat(parts, self.axis + self.position))

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.flatten(self.axis, self.axis + len(self.factors) - 1)


@dataclass(frozen=True, slots=True)
class CutDimension:
    """One dimension that can be cut.

    Attributes:
        name: in the line.
        index: within a group, counted from its end, -1 the last; None for one that is not a group.
    """

    name: str
    index: int | None = None

    @property
    def written(self) -> str:
        """Return the name as the line has it, n or *b."""
        return self.name if self.index is None else f"*{self.name}"

    @property
    def label(self) -> str:
        """Return the name in quotes, with the index within a group."""
        return f"'{self.name}'" if self.index is None else f"'*{self.name}', dimension {self.index},"

    def size(self, sizes: Sizes, position: int = 0) -> int:
        """Return its size, at a position of the lists."""
        size = sizes.at(self.name, position)
        if not isinstance(size, tuple):
            return size
        assert self.index is not None
        return size[self.index]

    def find_spot(self, item: Item, shape: Sequence[int], sizes: Sizes, position: int = 0) -> Spot | None:
        """Return where a tensor has it, or None; it has it once (see shapes/contract.py)."""
        return next(self._spots(place(item, shape), sizes, position), None)

    def _spots(self, placed: Iterable[tuple[Dim, Size | None]], sizes: Sizes, position: int) -> Iterator[Spot]:
        axis = 0
        for dim, size in placed:
            if isinstance(size, tuple):
                yield from self._spots_of_group(dim, size, axis)
                axis += len(size)
            elif size is not None:
                if not _is_spread(dim, size):
                    yield from self._spots_of_one(dim, axis, sizes, position)
                axis += 1

    def _spots_of_group(self, dim: Dim, size: tuple[int, ...], axis: int) -> Iterator[Spot]:
        if self.index is not None and dim.name == self.name and len(size) + self.index >= 0:
            inside = len(size) + self.index
            if not _is_spread(dim, size[inside]):
                yield Spot(axis + inside, (size[inside],), 0)

    def _spots_of_one(self, dim: Dim, axis: int, sizes: Sizes, position: int) -> Iterator[Spot]:
        if self.name in dim.factors:
            factors = tuple(sizes.count(one, position) if isinstance(one, str) else one for one in dim.factors)
            yield from (Spot(axis, factors, at) for at, one in enumerate(dim.factors) if one == self.name)


@dataclass(frozen=True, slots=True)
class SliceCut:
    """One way to cut a dimension.

    Attributes:
        rows: by position of the lists, where each slice begins and ends; one row where it is the same at all.
    """

    rows: tuple[tuple[int, tuple[Bounds, ...]], ...]

    @property
    def count(self) -> int:
        """Return the number of slices."""
        return len(self.rows[0][1])

    def at(self, position: int) -> tuple[Bounds, ...]:
        """Return the bounds of the slices at a position of the lists."""
        return dict(self.rows).get(position, self.rows[0][1])


def _is_spread(dim: Dim, size: int) -> bool:
    """Return True if a tensor has the size 1 for all slices."""
    return dim.is_broadcast and size == 1


def cut_dimensions(line: Line, sizes: Sizes, numbers: Sequence[str]) -> Iterator[CutDimension]:
    """Yield the dimensions that a line claims can be cut.

    Args:
        line: of the call.
        sizes: of its names.
        numbers: the names that are int arguments of the op, whose values are not sizes of slices.
    """
    of_inputs = dict.fromkeys(name for item in line.inputs for dim in item.dims for name in dim.names)
    for name in of_inputs:
        if name in line.along or name in numbers or name not in sizes:
            continue
        size = sizes[name]
        if isinstance(size, tuple):
            yield from (CutDimension(name, index - len(size)) for index in range(len(size)))
        else:
            yield CutDimension(name)


def cuts_of(totals: Mapping[int, int]) -> Iterator[SliceCut]:
    """Yield ways to cut sizes into slices, none of them empty: in halves, in one and the rest, in three.

    Args:
        totals: by position of the lists, the size; only 0 where it is the same at all.
    """
    found = dict.fromkeys(
        SliceCut(tuple((position, tuple(itertools.pairwise(ends_of(size)))) for position, size in totals.items()))
        for ends_of in (_halves, _one_and_rest, _three)
    )
    yield from (cut for cut in found if all(end > start for _, row in cut.rows for start, end in row))


def _halves(size: int) -> tuple[int, ...]:
    return 0, (size + 1) // 2, size


def _one_and_rest(size: int) -> tuple[int, ...]:
    return 0, 1, size


def _three(size: int) -> tuple[int, ...]:
    return 0, 1, 1 + size // 2, size
