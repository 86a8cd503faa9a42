"""What the generated source of every op may name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.calls.reading import are_new
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.transforms import is_transforming


def shared_names() -> dict[str, Any]:
    """Return the values by name (Any: functions and modules)."""
    return {
        "torch": torch,
        "Tensor": Tensor,
        "forward_ad": forward_ad,
        "is_transforming": is_transforming,
        "is_grad_enabled": torch.is_grad_enabled,
        "set_grad_enabled": guards.set_grad_enabled,
        "are_new": are_new,
    }
