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


class Remaining(threading.local):
    """The keys that remain of the call whose `forward` runs next in this thread, and whether any tensor is odd."""

    keys: Any = (None, True)  # Any: DispatchKeySet has no public type


remaining = Remaining()
