"""Calls an op below its Autograd key: see NOTE [why forward re-enables grad mode] in function.py."""

from __future__ import annotations

from typing import Any

from custom_autograd.torch_private import dispatch, transforms
from custom_autograd.torch_private.dispatch import OpOverload


def below(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:  # Any: what the op takes and returns
    """Calls the op as if it had no Autograd kernel."""
    with dispatch.below_autograd():
        if not transforms.is_transforming():
            return overload(*args, **kwargs)
        with transforms.gradients_recorded():
            return overload(*args, **kwargs)
