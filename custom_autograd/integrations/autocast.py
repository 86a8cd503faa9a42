"""Autocast: under it, floating-point tensors of an op with a policy are cast before the op runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from custom_autograd.registration.library import implement
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private.dispatch import key_of_device, without_key

SLOT = "autocast "


def slot_of(device_type: str) -> str:
    """The slot of the policy for a device type."""
    return f"{SLOT}{device_type}"


class Autocast:
    """One dtype per device type, from `register_autocast`."""

    name = "autocast"

    def attach(self, entry: Entry) -> None:
        """Registers a kernel at the Autocast key of each device type with a policy."""
        for slot in entry.rules:
            if slot.startswith(SLOT):
                device_type = slot.removeprefix(SLOT)
                key = f"Autocast{key_of_device(device_type)}"
                implement(entry, key, _kernel(entry, device_type, key))

    def describe(self, entry: Entry) -> str:
        """The policies, or that autocast leaves the op alone."""
        policies = [
            f"{slot.removeprefix(SLOT)}: {rule.extra['dtype']}"
            for slot, rule in entry.rules.items()
            if slot.startswith(SLOT)
        ]
        return f"registered: {', '.join(policies)}" if policies else "none: inputs keep their dtype"


def _kernel(entry: Entry, device_type: str, key: str) -> Callable[..., Any]:
    def autocast(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema says
        dtype = entry.rules[slot_of(device_type)].extra["dtype"]
        with without_key(key), torch.autocast(device_type, enabled=False):
            assert entry.overload is not None
            return entry.overload(*_cast(args, device_type, dtype), **_cast(kwargs, device_type, dtype))

    return autocast


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Casts floating-point tensors of the device type, except float64: as PyTorch's own autocast does."""
    if isinstance(value, Tensor):
        is_eligible = value.is_floating_point() and value.device.type == device_type and value.dtype != torch.float64
        return value.to(dtype) if is_eligible else value
    if isinstance(value, (list, tuple)):
        return [_cast(item, device_type, dtype) for item in value]
    if isinstance(value, dict):
        return {name: _cast(item, device_type, dtype) for name, item in value.items()}
    return value
