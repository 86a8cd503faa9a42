"""Whether tensors would make the dispatcher do what it did for others: one native question for all of them.

- `_C._dynamo.guards.TensorGuards`: Dynamo's own guard. It compares class, dispatch keys as the dispatcher computes them
  (the tensor's, plus those that modes and transforms include, minus those they exclude), dtype, device, number of
  dimensions and requires_grad. Asking tensor by tensor costs as much as the dispatcher itself. It does not see modes
  that Dynamo works under, it ends the process at tensors without sizes or strides, and it says no where a tensor is
  given twice.
- `_C._dispatch_keys`, `_C._dispatch_tls_local_include_set`, `_C._dispatch_tls_local_exclude_set`,
  `_C.DispatchKeySet`: what it compares.
- `_C._len_torch_function_stack`, `_C._len_torch_dispatch_stack`: no public question exists that costs less than the
  answer is worth. `autograd.profiler._is_profiler_enabled`, which generated source reads, is torch's own for that.
- `_C._functorch.is_functorch_wrapped_tensor`: a wrapper that has outlived its transform is not a plain tensor.
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
    """Call a function with grad mode off.

    `with torch.no_grad()` leaves it off for good where a signal handler raises right after the switch.
    """
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
