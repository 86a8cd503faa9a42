"""How much of what kernels and rules return is checked in each call: `full`, `cheap` or `off`.

What holds for a call: the innermost `validation(...)` of the thread, which includes backward passes that start in it;
else the op's own level, that of the environment variable CUSTOM_AUTOGRAD_VALIDATION, or `cheap`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.core.locks import ThreadLock
from custom_autograd.core.messages import show
from custom_autograd.registration.registry import Road
from custom_autograd.torch_private.definitions import changes
from custom_autograd.torch_private.thread_values import HandedOn

LEVELS = ("full", "cheap", "off")
VARIABLE = "CUSTOM_AUTOGRAD_VALIDATION"

_chosen: HandedOn[str] = HandedOn(VARIABLE)
_lock = ThreadLock()
_open_contexts = 0


def parse_level(level: object, where: str) -> str:
    """Return a level by name."""
    if isinstance(level, str) and level in LEVELS:
        return level
    raise CustomAutogradError(
        where, "there is no such level of validation", expected="'full', 'cheap' or 'off'", found=show(level)
    )


def default_level() -> str:
    """Return the level of ops that have none of their own."""
    return parse_level(os.environ.get(VARIABLE) or "cheap", VARIABLE)


def level_of(own: str | None) -> str:
    """Return the level of a call of an op, from the op's own level."""
    return (_chosen.get() if _open_contexts else None) or own or DEFAULT


def is_overridden() -> bool:
    """Return True if a `validation(...)` is open in any thread: then no call may rely on the level of another one."""
    return _open_contexts > 0


@contextmanager
def validation(level: str) -> Iterator[None]:
    """Set how much is checked in each call of every op, in this thread, while the context is open.

    It holds in backward passes that start in this thread, also on a GPU, where autograd runs them in another one.

    Args:
        level: "full" checks everything, in every call: that outputs share no memory with inputs or each other (by
            address), that inputs which are not declared as mutated keep their contents, that rules return no gradient
            for None or integers, and all of "cheap". For development. "cheap", the default, checks the same in the
            first call of each kind (kernel, dtype and number of dimensions of the first tensor, which optional tensors
            are given, lengths of lists), but for contents and such gradients, and in later ones what takes constant
            time: number and types of outputs, that none is an input or a view, shape, dtype and device of gradients.
            "off" checks only what would otherwise corrupt memory: a wrong kernel or rule is then silently wrong.

    Raises:
        CustomAutogradError: there is no such level.

    Example:
        >>> import custom_autograd
        >>> with custom_autograd.validation("full"):
        ...     pass  # every call in here is checked in full
    """
    global _open_contexts
    parsed = parse_level(level, "validation")
    with _lock:
        _open_contexts += 1
    changes.note()
    try:
        with _chosen.set(parsed):
            yield
    finally:
        with _lock:
            _open_contexts -= 1
        changes.note()


DEFAULT = default_level()


def keep(road: Road, key: str | None, make: Callable[[], Any]) -> Any:  # Any: what `make` returns
    """Return what runs there now, and keep it unless something changes meanwhile."""
    # While a `validation(...)` is open in any thread nothing is kept, since it holds in that thread only.
    epoch, made = changes.count, make()
    with changes.lock:
        if epoch == changes.count and not is_overridden():
            changes.tell_once(road.leave_keys)
            road.at_keys[key] = made
    return made
