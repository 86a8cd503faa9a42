"""Device types by their names: "cpu", "cuda", and that of an out-of-tree backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from custom_autograd.core.messages import suggest

OUT_OF_TREE = "privateuseone"
"""What PyTorch calls the device type of such a backend until the backend gives it another name."""


def name_of(device_type: str) -> str:
    """Return the name that tensors of a device type have: for "privateuseone" that of the backend."""
    return torch.device(OUT_OF_TREE).type if device_type == OUT_OF_TREE else device_type


def has_index(device_type: str) -> bool:
    """Return True for the name of a single device, such as "cuda:0"."""
    return ":" in str(device_type)


def is_known(device_type: str) -> bool:
    """Return True if torch has devices of that type, here or on another machine."""
    try:
        torch.device(device_type)
    except RuntimeError:
        return False
    return True


def unknown_among(names: Sequence[object]) -> object:
    """Return the first that is not a device type of torch, such as "gpu" or "cuda:0"; None if all are."""
    return next((one for one in names if not isinstance(one, str) or has_index(one) or not is_known(one)), None)


def advice_on(unknown: str) -> str:
    """Return what to do about a name that is not a device type of torch: it is misspelled or its package is missing."""
    if has_index(unknown) and is_known(unknown):
        return f"name the device type, '{torch.device(unknown).type}', which all its devices share"
    suggestion = suggest(ALIASES.get(unknown, unknown), DEVICE_TYPES)
    return f"{suggestion} If not, {IMPORT_BACKEND}" if suggestion else IMPORT_BACKEND


IMPORT_BACKEND = "import the package that makes the device type known to torch first"
DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "meta", "xla")
"""The device types to suggest in place of one that torch does not know."""
ALIASES = {"gpu": "cuda"}  # nearer to 'cpu' by its letters
