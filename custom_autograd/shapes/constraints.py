"""The sizes that have to be equal, for calls whose tensors have known numbers of dimensions: what C++ compares."""

from __future__ import annotations

from typing import TypeAlias

from custom_autograd.shapes.notation import Line
from custom_autograd.shapes.placing import place
from custom_autograd.shapes.unification import Shapes

Place: TypeAlias = tuple[str, int, int]
"""One size: the argument, which of its tensors, and the dimension."""

Constraint: TypeAlias = tuple[Place, Place | int]
"""A size that must be that of another place, or a number."""


def constraints_of(line: Line, shapes: Shapes) -> tuple[Constraint, ...] | None:
    """Return what must be equal in a call with tensors of as many dimensions as these.

    Args:
        line: the line.
        shapes: of the inputs of a call that fits it.

    Returns:
        The constraints; None if a size may be 1, or is a product or an int argument, which is for Python to check.
    """
    if any(dim.is_broadcast or len(dim.factors) > 1 or dim.plus for dim in line.dims()):
        return None
    first: dict[tuple[str, int], Place] = {}
    found: list[Constraint] = []
    for item in line.inputs:
        for element, shape in enumerate(shapes.get(item.name, ())):
            at = 0
            for dim, size in place(item, shape):
                count = len(size) if isinstance(size, tuple) else 1
                for index in range(count):
                    here = (item.name, element, at + index)
                    if dim.factors and isinstance(dim.factors[0], int):
                        found.append((here, dim.factors[0]))
                    elif dim.factors:
                        there = first.setdefault((dim.names[0], index), here)
                        found += [(here, there)] if there != here else []
                at += count
    return tuple(found)
