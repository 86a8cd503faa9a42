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
    """Keeps a value under a key, in this thread and in the backward passes that start in it from now on."""
    before = sys.getrefcount(value)
    _C._stash_obj_in_tls(key, value)
    # torch 2.11 takes no reference of its own, and gives one back when the value is replaced.
    if sys.getrefcount(value) == before:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def get(key: str, default: Any) -> Any:
    """The value that this thread keeps under a key."""
    return _C._get_obj_in_tls(key) if _C._is_key_in_tls(key) else default
