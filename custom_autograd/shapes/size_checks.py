"""SizeCheck: what is known of a kernel that looks at the sizes of its tensors, so that native code can do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from custom_autograd.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from custom_autograd.shapes.constraints import Constraint
    from custom_autograd.shapes.described import DescribedOp

Function = Callable[..., Any]  # Any: takes and returns what the schema says


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
        """Return the sizes that must be equal in calls of this kind; None if that is to be asked in Python.

        Args:
            values: the arguments of a call that fits the line (Any: as the schema says).
        """
        described = self.described
        if described.rule.function is not None or described.deciding or described.lists:
            return None
        from custom_autograd.shapes.constraints import constraints_of  # loaded for ops with a line
        from custom_autograd.shapes.placing import SizeMismatch

        try:
            return constraints_of(described.line(values), described.shapes(values))
        except SizeMismatch:  # another number of dimensions than the calls had by which the kind was proven
            return None


def find_size_check(function: Function) -> SizeCheck | None:
    """Return the check of a kernel, or None if it has none."""
    found = getattr(function, "size_check", None)
    return found if isinstance(found, SizeCheck) else None
