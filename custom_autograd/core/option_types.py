"""Raises for an option that has another type than it takes: a number in place of names, a string in place of a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.core.messages import show


class Refuse(Protocol):
    """Makes an error that says which op, or what else, has the option."""

    def __call__(self, problem: str, *, expected: str, found: str, do: str) -> CustomAutogradError:
        """Return the error."""
        ...


def check_type(  # Any: whatever the author wrote; `Callable`, which type checkers do not take for a class
    refuse: Refuse, option: str, value: Any, types: tuple[Any, ...], expected: str, *, example: str
) -> None:
    """Raise if an option has another type, with a value that it takes."""
    if not isinstance(value, types):
        problem = f"the option '{option}' has the wrong type"
        raise refuse(problem, expected=expected, found=show(value), do=f"pass {option}={example}, for example")


def check_bools(refuse: Callable[[], Refuse], **options: Any) -> None:  # Any: as above
    """Raise if an option that is on or off is neither True nor False."""
    for option, value in options.items():
        if value is not True and value is not False:
            check_type(refuse(), option, value, (bool,), "True or False", example="True")


def listed(refuse: Refuse, option: str, names: Any, *, example: str = "'x'") -> tuple[str, ...]:  # Any: as above
    """Return one name or several as a tuple; raise for anything else."""
    if names == ():  # the default, and by far the most common value
        return ()
    found = several(names)
    for one in found:
        if not isinstance(one, str):
            check_type(refuse, option, one, (str,), "a string, or several", example=example)
    return found


def several(value: Any) -> tuple[Any, ...]:  # Any: as above
    """Return one value or several as a tuple; a string is one."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
