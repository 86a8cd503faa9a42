"""The sizes that have to be equal, so that native code can compare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.shapes.notation import Line, place
from custom_autograd.shapes.unification import Shapes

if TYPE_CHECKING:
    from custom_autograd.shapes.described import DescribedOp


Function = Callable[..., Any]  # Any: takes and returns what the schema declares


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The sizes that a kernel relies on.

    Attributes:
        function: the kernel, which relies on them.
        described: the op.
    """

    function: Function
    described: DescribedOp

    def constraints(self, values: Mapping[str, Any]) -> tuple[Constraint, ...] | None:
        """Return the sizes that must be equal in calls of this kind; None if that is to be asked in Python."""
        described = self.described
        if described.rule.function is not None or described.deciding or described.lists:
            return None
        from custom_autograd.shapes.notation import SizeMismatch

        try:
            return constraints_of(described.line(values), described.shapes(values))
        except SizeMismatch:  # another number of dimensions than the calls had by which the kind was proven
            return None


def find_size_check(function: Function) -> SizeCheck | None:
    """Return the check of a kernel, or None if it has none."""
    found = getattr(function, "size_check", None)
    return found if isinstance(found, SizeCheck) else None


Place: TypeAlias = tuple[str, int, int]
"""One size: the argument, which of its tensors, and the dimension."""

Constraint: TypeAlias = tuple[Place, Place | int]
"""A size that must be that of another place, or a number."""


def constraints_of(line: Line, shapes: Shapes) -> tuple[Constraint, ...] | None:
    """Return what must be equal in a call with tensors of as many dimensions as these.

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
