"""What is asked and switched around a kernel in each call: modes, grad mode, and the names of dispatch keys.

- `_C._len_torch_function_stack`, `_C._len_torch_dispatch_stack`: no public question exists that costs less than the
  answer is worth.
- `_C.DispatchKeySet.from_raw_repr`: a set of keys from its bits, as native code has them.
- `_C._dispatch_key_for_device`: the name of a device type's key.
- `_C._set_grad_enabled`: `torch.no_grad()` costs six times as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import _C

torch_function_modes = _C._len_torch_function_stack
torch_dispatch_modes = _C._len_torch_dispatch_stack
set_grad_enabled = _C._set_grad_enabled


def without_grad_mode(function: Callable[..., Any], *args: Any) -> Any:  # Any: whatever it takes and returns
    """Call a function with grad mode off."""
    # `with torch.no_grad()` leaves it off for good where a signal handler raises right after the switch.
    before = torch.is_grad_enabled()
    try:
        set_grad_enabled(False)
        return function(*args)
    finally:
        set_grad_enabled(before)


@functools.cache
def names_of(keys: int) -> frozenset[str]:
    """Return the names of the dispatch keys in a set, given as its bits; torch gives no iteration over it."""
    text = str(_C.DispatchKeySet.from_raw_repr(keys)).removeprefix("DispatchKeySet(").removesuffix(")")
    return frozenset(text.split(", ")) - {""}


@functools.cache
def backend_of(device_type: str) -> str:
    """Return the dispatch key of the kernels for a device type, such as "CPU"."""
    name: str = _C._dispatch_key_for_device(device_type)
    return name
