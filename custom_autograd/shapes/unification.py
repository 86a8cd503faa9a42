"""Finds what the names of a line stand for in one call: each has one size in all tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from custom_autograd.shapes.notation import Dim, Item, Line, Shape, Size, SizeMismatch, place

Shapes: TypeAlias = Mapping[str, Sequence[Shape]]
"""By name of an input, its shape, or those of all tensors of a list; none for an input that is None."""


def names_of_places(line: Line, lists: frozenset[str]) -> frozenset[str]:
    """Return the names of dimensions that only lists have: they may differ from place to place."""
    items = (*line.inputs, *line.outputs)
    within = {name for item in items if item.name in lists for dim in item.dims for name in dim.names}
    return frozenset(within) - {
        name for item in items if item.name not in lists for dim in item.dims for name in dim.names
    }


def key_of(name: str, place: int, local: frozenset[str]) -> str:
    """Return what a name is called in the result of `unify`: "n", or "n.1" at a place of lists."""
    return f"{name}.{place}" if name in local else name


def unify(line: Line, shapes: Shapes, numbers: Mapping[str, int], local: frozenset[str]) -> dict[str, Size]:
    """Return the size of each name."""
    found = _Unification(numbers, local)
    for item in line.inputs:
        for index, shape in enumerate(shapes.get(item.name, ())):
            for dim, size in place(item, shape):
                if size is not None and dim.factors:
                    found.add(_Row(item, index, dim, size, shape))
    return found.settled()


@dataclass(frozen=True, slots=True)
class _Row:
    """One dimension of a tensor with its size.

    Attributes:
        item: of the tensor.
        place: in a list.
        dim: the dimension.
        size: its size, or those of a group.
        shape: of the tensor.
    """

    item: Item
    place: int
    dim: Dim
    size: Size
    shape: Shape

    def mismatch(self, known: str, expected: str) -> SizeMismatch:
        problem = f"'{self.item.name}' must be {self.item}" + (f" with {known}" if known else "")
        return SizeMismatch(self.item.name, problem, expected, self.shape)


class _Unification:
    """The sizes that are known so far, and what waits for others: products, and what may be broadcast."""

    def __init__(self, numbers: Mapping[str, int], local: frozenset[str]) -> None:
        self._local = local
        self._found: dict[str, Size] = dict(numbers)
        self._from = {name: f"the argument '{name}'" for name in numbers}
        self._products: list[_Row] = []
        self._spread: list[_Row] = []

    def add(self, row: _Row) -> None:
        dim = row.dim
        if dim.is_broadcast:
            self._spread.append(row)
        elif dim.name is not None:
            self._note(row, key_of(dim.name, row.place, self._local))
        elif dim.names:
            self._products.append(row)
        elif row.size != math.prod(factor for factor in dim.factors if isinstance(factor, int)):
            raise row.mismatch("", f"{dim} where it has {row.size}")

    def settled(self) -> dict[str, Size]:
        """Return all sizes, once what waits is known."""
        waiting = list(self._products)
        while waiting:
            row = min(waiting, key=lambda one: len(self._unknown(one)))
            waiting.remove(row)
            if len(self._unknown(row)) <= 1:
                self._settle_product(row)
        for row in self._spread:
            self._settle_spread(row)
        return self._found

    def _note(self, row: _Row, key: str) -> None:
        known = self._found.setdefault(key, row.size)
        self._from.setdefault(key, f"'{row.item.name}'")
        if not _are_equal(known, row.size):
            name = f"{row.dim.name} = {known}"
            raise row.mismatch(name, f"{name}, as in {self._from[key]}")

    def _unknown(self, row: _Row) -> list[str]:
        keys = dict.fromkeys(key_of(name, row.place, self._local) for name in row.dim.names)
        return [key for key in keys if key not in self._found]

    def _known_part(self, row: _Row) -> tuple[int, str]:
        """Return the product of the factors that are known, and their sizes as text."""
        product, sizes = 1, []
        for factor in row.dim.factors:
            size = factor if isinstance(factor, int) else self._found.get(key_of(factor, row.place, self._local), 1)
            assert not isinstance(size, tuple)  # a group is not a factor
            product *= size
            if isinstance(factor, str) and key_of(factor, row.place, self._local) in self._found:
                sizes.append(f"{factor} = {size}")
        return product, ", ".join(sizes)

    def _settle_product(self, row: _Row) -> None:
        unknown, (known, sizes), plus = self._unknown(row), self._known_part(row), row.dim.plus
        assert not isinstance(row.size, tuple)  # a product is one dimension
        rest = row.size - plus
        if not unknown:
            if known != rest:
                raise row.mismatch(sizes, f"{known + plus} where it has {row.size}")
        elif rest < 0 or (rest != 0 if known == 0 else rest % known != 0):
            several = str(plus) if known == 0 else f"{plus} or more" if plus else f"a multiple of {known}"
            raise row.mismatch(sizes, f"{several} where it has {row.size}")
        else:
            self._found[unknown[0]] = rest // known if known != 0 else 0
            self._from[unknown[0]] = f"'{row.item.name}'"

    def _settle_spread(self, row: _Row) -> None:
        """Compare a dimension that may be 1 with the whole; where nothing else says it, the largest of them is it."""
        if row.dim.name is None:
            whole, sizes = self._whole_product(row)
        else:
            key = key_of(row.dim.name, row.place, self._local)
            if key not in self._found:
                same = [other.size for other in self._spread if other.dim.name == row.dim.name]
                self._found[key] = _broadcast(same)
            whole = self._found[key]
            sizes = f"{row.dim.name} = {whole}"
        if not _spreads(row.size, whole):
            raise row.mismatch(sizes, f"{sizes}, or 1")

    def _whole_product(self, row: _Row) -> tuple[Size, str]:
        unknown = self._unknown(row)
        if row.size == 1 or len(unknown) > 1:
            return row.size, ""
        if unknown:
            self._settle_product(row)
        product, sizes = self._known_part(row)
        return product + row.dim.plus, sizes


def _are_equal(first: Size, second: Size) -> bool:
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(a == b for a, b in zip(first, second, strict=True))
    return first == second


def _spreads(size: Size, whole: Size) -> bool:
    """Return True if a size is that of the whole, or is spread to it as broadcasting does."""
    if isinstance(size, tuple) and isinstance(whole, tuple):
        last = whole[len(whole) - len(size) :]
        return len(size) <= len(whole) and all(a == 1 or a == b for a, b in zip(size, last, strict=True))
    return size == 1 or size == whole


def _broadcast(sizes: Sequence[Size]) -> Size:
    """Return the size to which all of them are spread, if they can be."""
    if not isinstance(sizes[0], tuple):
        return next((size for size in sizes if size != 1), 1)
    groups = [size for size in sizes if isinstance(size, tuple)]
    longest = max(map(len, groups))
    padded = [(1,) * (longest - len(group)) + group for group in groups]
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))


class Sizes:
    """The sizes of a call by name.

    Args:
        line: the line.
        shapes: of the inputs.
        numbers: the int arguments of the op that the line names.
        lists: the names of the tensors that are lists; a name of a dimension that only lists have may stand for another
            size at each place.

    Attributes:
        line: the line.
        local: the names that may stand for another size at each place.

    Raises:
        SizeMismatch: the shapes do not fit the line.
    """

    def __init__(
        self, line: Line, shapes: Shapes, numbers: Mapping[str, int], lists: frozenset[str] = frozenset()
    ) -> None:
        self.line = line
        self.local = names_of_places(line, lists)
        self._found = unify(line, shapes, numbers, self.local)

    def __contains__(self, name: object) -> bool:
        return name in self._found or (name in self.local and f"{name}.0" in self._found)

    def __getitem__(self, name: str) -> Size:
        return self.at(name, 0)

    def at(self, name: str, place: int) -> Size:
        """Return the size of a name at a place of the lists."""
        return self._found[key_of(name, place, self.local)]

    def names(self) -> list[str]:
        """Return the names whose sizes are known, and the same at all places."""
        return [name for name in self._found if "." not in name]

    def count(self, name: str, place: int = 0) -> int:
        """Return the size of a dimension, or the product of those of a group."""
        size = self.at(name, place)
        return math.prod(size) if isinstance(size, tuple) else size

    def shape_of(self, item: Item, place: int = 0) -> tuple[int, ...]:
        """Return the shape of a tensor, or of that at a place of a list."""
        found: list[int] = []
        for dim in item.dims:
            size = self.at(dim.names[0], place) if dim.is_many and dim.factors else None
            if isinstance(size, tuple):
                found += size
            else:
                found.append(self.size_of(dim, place))
        return tuple(found)

    def size_of(self, dim: Dim, place: int = 0) -> int:
        """Return the size of one dimension."""
        if not dim.factors:
            raise KeyError(str(dim))
        return math.prod(self.count(one, place) if isinstance(one, str) else one for one in dim.factors) + dim.plus
