"""Values of one thread that autograd hands on to the threads in which it runs a backward.

_C._stash_obj_in_tls, _get_obj_in_tls, _is_key_in_tls, _remove_obj_from_tls (later than 2.11)
                        part of at::ThreadLocalState, which the engine restores in its device threads; threading.local
                        and contextvars do not get there
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

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
    """Keep what `get` returned before a `put`: nothing if it was the default, where torch can forget a value.

    The engine copies all values of a thread a dozen times in every backward, so none should be left over.
    """
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
