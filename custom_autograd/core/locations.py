"""file:line of a declaration, a rule or a kernel."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any


def location_of(function: Callable[..., Any]) -> str:  # Any: whatever a user registers
    """Return where a function was written, as `file.py:12`; what it is where it has no Python source.

    An object that is written in another language says so itself, in `written_in`.
    """
    plain = unwrap(function)
    written_in = getattr(plain, "written_in", None)
    if isinstance(written_in, str):
        return written_in
    code = getattr(plain, "__code__", None)
    if code is not None:
        return format_location(code.co_filename, code.co_firstlineno)
    with contextlib.suppress(TypeError, OSError):  # it is not a class, or one without a file
        return format_location(inspect.getfile(plain), inspect.getsourcelines(plain)[1])
    return f"{type(plain).__name__} {getattr(plain, '__name__', '')}".strip()


def format_location(file: str, line: int | str | None) -> str:
    """Return `file.py:12`; `package/__init__.py:12` for a file that every package has."""
    folder, name = os.path.split(file)
    return f"{os.path.basename(folder)}/{name}:{line}" if name.startswith("__") else f"{name}:{line}"


def packages_of(file: Path) -> list[Path]:
    """Return the folders of the packages that a file is in, the innermost first."""
    return list(itertools.takewhile(lambda folder: (folder / "__init__.py").exists(), file.absolute().parents))


def modules_of(function: Callable[..., Any], caller: str = "") -> tuple[str, ...]:  # Any: as above
    """Return the modules whose import declares an op: that of its function, and that which declares it."""
    found = (getattr(unwrap(function), "__module__", None), caller)
    return tuple(dict.fromkeys([name for name in found if name and isinstance(name, str)]))


def module_of_caller() -> str:
    """Return the name of the module of the innermost frame that is not ours; "" if it has none."""
    frame = _frame_of_user()
    return "" if frame is None else str(frame.f_globals.get("__name__") or "")


def location_of_declaration(declared: object) -> str:
    """Return file:line of a declared function; of the line that declares it if it is not a function."""
    if callable(declared):
        return location_of(declared)
    frame = _frame_of_user()
    return "" if frame is None else format_location(frame.f_code.co_filename, frame.f_lineno)


def _frame_of_user() -> FrameType | None:
    """Return the innermost frame that is not ours."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == OURS:
        frame = frame.f_back
    return frame


def stacklevel_of_caller() -> int:
    """Return the `stacklevel` for a `warnings.warn` in the calling function: that of the user's first line.

    Lines of torch between lines of ours, which is how an op reaches its kernel, are not the user's.
    """
    frame, level = inspect.currentframe(), 0
    while frame is not None and _is_passed(frame):
        frame, level = frame.f_back, level + 1
    return max(1, level)


def _is_passed(frame: FrameType) -> bool:
    generated = frame.f_code.co_filename.startswith("<custom_autograd ")
    return generated or str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", OURS)


OURS = __name__.partition(".")[0]


def unwrap(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: as above
    """Return the function behind wrappers, partials, bound methods and callable objects."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        return function
    while callable(inner := _inner(function)):
        function = inner
    return function


def layers_of(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:  # Any: as above
    """Yield a callable and what each layer of it calls, the outermost first."""
    yield function
    while callable(function := _inner(function)):
        yield function


def _inner(function: Callable[..., Any]) -> Any:  # Any: what a wrapper holds
    """Return what a wrapper calls, or None for what is not a wrapper."""
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        return wrapped
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    if inspect.isroutine(function) or isinstance(function, type):
        return None
    if hasattr(function, "written_in"):
        return None
    call = type(function).__call__  # a callable object: its class says what it does
    return call if inspect.isfunction(call) or hasattr(call, "__wrapped__") else None
