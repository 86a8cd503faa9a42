"""Finds the shapes of an op. What reads lines is loaded with the first op that has one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.rule import Shapes

if TYPE_CHECKING:
    from custom_autograd.shapes.described import DescribedOp

_DESCRIBED: weakref.WeakKeyDictionary[OpRecord, DescribedOp] = weakref.WeakKeyDictionary()


def described_op(record: OpRecord) -> DescribedOp | None:
    """Return an op with its shapes; None if none are registered."""
    rule = record.registrations.get(Shapes)
    if rule is None:
        return None
    found = _DESCRIBED.get(record)
    if found is None or found.rule is not rule:
        from custom_autograd.shapes.described import DescribedOp  # with the parser, only ops with a line need it

        _DESCRIBED[record] = found = DescribedOp(record.declaration, rule)
    return found


def check_sizes(record: OpRecord, values: Mapping[str, Any]) -> None:
    """Raise if the arguments of a call (Any: tensors and others) do not have the dimensions of the line.

    Raises:
        ShapeError: they do not.
    """
    described = described_op(record)
    if described is not None:
        described.sizes(values)
