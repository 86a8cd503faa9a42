"""Values of one thread that autograd hands on to the threads in which it runs a backward.

_C._stash_obj_in_tls, _get_obj_in_tls, _is_key_in_tls
                        part of at::ThreadLocalState, which the engine restores in its device threads; threading.local
                        and contextvars do not get there
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from torch import _C


def put(key: str, value: Any) -> None:  # Any: any object, here and below
    """Keep a value under a key, in this thread and in the backward passes that start in it from now on."""
    if TAKES_WHAT_IT_DOES_NOT_OWN:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _C._stash_obj_in_tls(key, value)


def get(key: str, default: Any) -> Any:
    """Return the value that this thread keeps under a key."""
    return _C._get_obj_in_tls(key) if _C._is_key_in_tls(key) else default


def _takes_what_it_does_not_own() -> bool:
    value = object()
    before = sys.getrefcount(value)
    _C._stash_obj_in_tls("custom_autograd.thread_values", value)
    found = sys.getrefcount(value) == before
    if found:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    return found


# torch 2.11 stores a value without a reference of its own and yet gives one up later, which ends in a crash; 2.13 owns
# what it stores.
TAKES_WHAT_IT_DOES_NOT_OWN = _takes_what_it_does_not_own()
