"""Whether a function is defined again: a notebook cell that is run again, a module that is reloaded."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from types import CellType, CodeType
from typing import Any

ANONYMOUS = ("_", "<lambda>")


def is_redefinition(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: whatever users register
    """Return True if Python would let one function replace the other: same module and qualified name.

    Functions named `_` and lambdas are also compared by location. Two of them in one file are two functions; on a line,
    or in two files of one module (which is what the cells of a notebook are), they are one that is defined again.
    """
    return _name_of(old) == _name_of(new) and is_redeclaration(old, new)


def is_redeclaration(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: as above
    """Return True if a module declares an op again with a function of the same name, perhaps within another function.

    That is how torchao, for one, exchanges an op of its own. Functions named `_` and lambdas as in `is_redefinition`.
    """
    if old is new:
        return True
    before, after = _code_of(old), _code_of(new)
    if before is None or after is None:
        return False
    if (module_of(old), before.co_name) != (module_of(new), after.co_name):
        return False
    is_other_file = before.co_filename != after.co_filename
    return before.co_name not in ANONYMOUS or is_other_file or _location(before) == _location(after)


def is_other_closure(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: as above
    """Return True if one definition ran twice, around other values: a factory made two functions."""
    before, after = inspect.unwrap(old), inspect.unwrap(new)
    if _code_of(old) is not _code_of(new):
        return False
    return _captured(before) != _captured(after)


def _captured(function: Callable[..., Any]) -> tuple[object, ...]:  # Any: as above
    """Return what distinguishes two functions of one definition: by identity, since values may be tensors."""
    cells = getattr(function, "__closure__", None) or ()
    defaults = getattr(function, "__defaults__", None) or ()
    keywords = getattr(function, "__kwdefaults__", None) or {}
    held = [cell.cell_contents for cell in cells if cell != CellType()]
    return tuple(map(id, [*held, *defaults, *keywords.values()]))


def is_imported_twice(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: as above
    """Return True if both come from one line of one file, which is imported under two names."""
    before, after = _code_of(old), _code_of(new)
    if before is None or after is None or _name_of(old)[0] == _name_of(new)[0]:
        return False
    return _location(before) == _location(after) and before.co_name == after.co_name


def module_of(function: Callable[..., Any]) -> str:  # Any: as above
    """Return the name of the module that a function was defined in."""
    return _name_of(function)[0]


def _code_of(function: Callable[..., Any]) -> CodeType | None:  # Any: as above
    """Return the code of a Python function behind its decorators; None for other callables, which have no location."""
    plain = inspect.unwrap(function)
    return plain.__code__ if inspect.isfunction(plain) else None


def _name_of(function: Callable[..., Any]) -> tuple[str, str]:  # Any: as above
    plain = inspect.unwrap(function)
    return str(getattr(plain, "__module__", "")), str(getattr(plain, "__qualname__", ""))


def _location(code: CodeType) -> tuple[str, int]:
    return os.path.abspath(code.co_filename), code.co_firstlineno
