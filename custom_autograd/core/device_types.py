"""Device types by their names: "cpu", "cuda", and that of an out-of-tree backend."""

from __future__ import annotations

import torch

OUT_OF_TREE = "privateuseone"
"""What PyTorch calls the device type of such a backend until the backend gives it another name."""


def name_of(device_type: str) -> str:
    """Return the name that tensors of a device type have: for "privateuseone" that of the backend."""
    return torch.device(OUT_OF_TREE).type if device_type == OUT_OF_TREE else device_type


def has_index(device_type: str) -> bool:
    """Return True for the name of a single device, such as "cuda:0"."""
    return ":" in str(device_type)
