"""Values of a thread or asyncio task that also count in the backward passes that start there.

Autograd runs a backward on a GPU in another thread, which a ContextVar does not reach: torch's own thread-local state
does.

_C._stash_obj_in_tls, _get_obj_in_tls, _is_key_in_tls, _remove_obj_from_tls (later than 2.11)
                        part of at::ThreadLocalState, which the engine restores in its device threads; threading.local
                        and contextvars do not get there
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from torch import _C


def put(key: str, value: Any) -> None:  # Any: any object, here and below
    """Keep a value under a key, in this thread and in the backward passes that start in it from now on."""
    if _takes_what_it_does_not_own():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _C._stash_obj_in_tls(key, value)


def get(key: str, default: Any) -> Any:
    """Return the value that this thread keeps under a key."""
    return _C._get_obj_in_tls(key) if _C._is_key_in_tls(key) else default


def put_back(key: str, value: Any, default: Any) -> None:
    """Keep what `get` returned before a `put`: nothing if it was the default, where torch can forget a value."""
    # The engine copies all values of a thread a dozen times in every backward, so none should be left over.
    if value is default and CAN_REMOVE:
        _C._remove_obj_from_tls(key)
    else:
        put(key, value)


@functools.cache
def _takes_what_it_does_not_own() -> bool:
    """Return True if torch stores a value without a reference of its own and yet gives one up later, as 2.11 does."""
    value = object()
    before = sys.getrefcount(value)
    _C._stash_obj_in_tls(PROBE, value)
    found = sys.getrefcount(value) == before
    if found:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    if CAN_REMOVE:
        _C._remove_obj_from_tls(PROBE)
    return found


PROBE = "custom_autograd.thread_values"
CAN_REMOVE = hasattr(_C, "_remove_obj_from_tls")


T = TypeVar("T")
NOTHING = (0, None)
"""The value of a thread that has none: no owner."""


class HandedOn(Generic[T]):
    """A value that contexts set; they nest.

    Args:
        key: the name, unique in the process.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._here: ContextVar[T | None] = ContextVar(key, default=None)

    def get(self) -> T | None:
        """Return the value of this thread or task, else of the one that started this backward; None if neither has."""
        value = self._here.get()
        if value is not None:
            return value
        owner, value = get(self._key, NOTHING)
        return None if owner == threading.get_ident() else value  # of another task in this thread

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Set the value while the context is open."""
        token, before = self._here.set(value), get(self._key, NOTHING)
        put(self._key, (threading.get_ident(), value))
        try:
            yield
        finally:
            self._here.reset(token)
            put_back(self._key, before, NOTHING)
