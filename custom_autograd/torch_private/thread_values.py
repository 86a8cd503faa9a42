"""Values of one thread that autograd hands on to the threads in which it runs a backward.

_C._stash_obj_in_tls, _get_obj_in_tls, _is_key_in_tls
                        part of at::ThreadLocalState, which the engine restores in its device threads; threading.local
                        and contextvars do not get there. torch 2.11 keeps the object without a reference of its own,
                        and gives one back when it lets go: the object would be freed while it is kept
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from torch import _C


def put(key: str, value: Any) -> None:  # Any: any object, here and below
    """Keeps a value under a key, in this thread and in the backward passes that start in it from now on."""
    if not TAKES_A_REFERENCE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _C._stash_obj_in_tls(key, value)


def get(key: str, default: Any) -> Any:
    """The value that this thread keeps under a key."""
    return _C._get_obj_in_tls(key) if _C._is_key_in_tls(key) else default


def _takes_a_reference() -> bool:
    """Whether torch holds what it keeps; where it does not, the probe gets the reference that torch will give back."""
    probe = object()
    before = sys.getrefcount(probe)
    _C._stash_obj_in_tls(PROBE, probe)
    if sys.getrefcount(probe) > before:
        return True
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return False


PROBE = "custom_autograd probe"
TAKES_A_REFERENCE = _takes_a_reference()
