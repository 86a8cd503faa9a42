"""Read NamedTuples that user code returns by the names of their fields, whatever the order of these is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def in_order_of(names: Sequence[str], values: Any) -> Any:  # Any: whatever user code returned
    """Return the values of a NamedTuple in the order of names, if its fields are these; anything else as it is."""
    fields = getattr(type(values), "_fields", None) if isinstance(values, tuple) else None
    if fields is None or tuple(fields) == tuple(names) or set(fields) != set(names):
        return values
    return tuple([getattr(values, name) for name in names])
