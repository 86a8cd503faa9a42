"""Calls an op below its Autograd key: see NOTE [why forward re-enables grad mode] in function.py."""

from __future__ import annotations

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
