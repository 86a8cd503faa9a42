"""Devices by name: which are available in this process."""

import torch

from custom_autograd.core.devices import IMPORT_BACKEND
from custom_autograd.core.errors import CheckError


def device_of(name: str) -> torch.device:
    """Return the device of a name such as cuda:0.

    Raises:
        CheckError: there is no device of that name, or none here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        do = f"{IMPORT_BACKEND}, for example in the file of the ops"
        raise CheckError(f"{name}: there is no device type of that name", do=do) from error
    if not has_device(device.type) or not _has_index(device):
        raise CheckError(f"{name}: there is no such device here")
    return device


def has_device(device_type: str) -> bool:
    """Return True if a tensor can be created on a device of this type here."""
    if device_type == "cpu":
        return True
    module = getattr(torch, device_type, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())


def _has_index(device: torch.device) -> bool:
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    return device.index is None or count is None or device.index < count()
