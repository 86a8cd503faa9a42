"""The names that code uses, and the cells of closures that have a content."""

from __future__ import annotations

from types import CellType, CodeType


def names_in(code: CodeType | None) -> frozenset[str]:
    """Return the names of globals and attributes that code uses, with the functions within it; none for None."""
    if code is None:
        return frozenset()
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)


def is_filled(cell: CellType) -> bool:
    """Return True if a variable of a closure has a value by now."""
    try:
        cell.cell_contents  # noqa: B018 - reading is the question
    except ValueError:
        return False
    return True
