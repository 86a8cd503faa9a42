"""The names that code uses, and the cells of closures that have a content."""

from __future__ import annotations

import ast
import inspect
import textwrap
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


def returns_nothing(function: object) -> bool:
    """Return True if a function surely has no `return` with a value: then None that it returned was forgotten."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]  # it raises for others
    except (OSError, TypeError, SyntaxError):  # it has no source, or is part of a line
        return False
    is_function = isinstance(tree.body[0], ast.FunctionDef)
    return is_function and not any(isinstance(node, ast.Return) and node.value for node in ast.walk(tree))
