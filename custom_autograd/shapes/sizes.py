"""Sizes: what the names of a line stand for in one call, found from the shapes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from custom_autograd.shapes.notation import Dim, Item, Line
from custom_autograd.shapes.placing import Size
from custom_autograd.shapes.unification import Shapes, key_of, names_of_places, unify


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
        """Return the shape of a tensor, or of that at a place of a list.

        Raises:
            KeyError: a size is not known.
        """
        found: list[int] = []
        for dim in item.dims:
            size = self.at(dim.names[0], place) if dim.is_many and dim.factors else None
            if isinstance(size, tuple):
                found += size
            else:
                found.append(self.size_of(dim, place))
        return tuple(found)

    def size_of(self, dim: Dim, place: int = 0) -> int:
        """Return the size of one dimension.

        Raises:
            KeyError: it is not known.
        """
        if not dim.factors:
            raise KeyError(str(dim))
        return math.prod(self.count(one, place) if isinstance(one, str) else one for one in dim.factors) + dim.plus
