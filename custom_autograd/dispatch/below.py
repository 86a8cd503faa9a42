"""Calls an op below its Autograd key: see NOTE [why forward re-enables grad mode] in function.py.

NOTE [one event per call]
Profilers record every call that enters the dispatcher, and none that continues there. So the Autograd kernel leaves the
keys that remain for the `forward` that it runs next in this thread, which continues at those. Under a transform, and
where AOTAutograd traces, the call enters the dispatcher again: the next level has to start from the top.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.torch_private import dispatch, modes, transforms


def below(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # Any: what the op takes and returns
    """Call a function of tensors as if there were no Autograd kernels at this level."""
    with dispatch.below_autograd():
        if transforms.is_transforming():
            with transforms.gradients_recorded():
                return function(*args, **kwargs)
        if modes.is_functionalizing():
            with torch.enable_grad():
                return function(*args, **kwargs)
        return function(*args, **kwargs)


def leave_keys(keys: Any) -> None:  # Any: DispatchKeySet has no public type
    """Leave the keys of a call that remain below its Autograd kernel to the next `continue_below` of this thread."""
    _remaining.keys = keys


def continue_below(overload: dispatch.OpOverload, /, *args: Any, **kwargs: Any) -> Any:  # Any: as in `below`
    """Continue the call whose keys were left, or call an op as `below` does."""
    keys, _remaining.keys = _remaining.keys, None
    if keys is None or transforms.is_transforming() or modes.is_functionalizing():
        return below(overload, *args, **kwargs)
    with dispatch.below_autograd():
        return dispatch.redispatch(overload, keys, *args, **kwargs)


class _Remaining(threading.local):
    keys: Any = None  # Any: as in `leave_keys`


_remaining = _Remaining()
