"""Device types by their names, and the devices of the tensors of a call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError, Origin
from custom_autograd.core.messages import quote, suggest


def error_of_devices(
    origin: Origin, arguments: Mapping[str, Any], expected: str, *, found: str | None = None
) -> KernelError | None:
    """Return the error of a call whose tensors are on several devices; None if they are on one."""
    devices = dict(devices_of(arguments))
    places = list(dict.fromkeys(devices.values()))
    if len(places) < 2:
        return None
    home = next((place for place in places if place.type != "cpu"), places[0])
    shown = [f"'{name}' is on {device}" for name, device in devices.items()]
    rest = [f"and {len(shown) - MOST} more"] if len(shown) > MOST else []
    away = [name for name, device in devices.items() if device != home]
    problem = f"tensors on {NUMBERS.get(len(places), len(places))} devices: {', '.join(shown[:MOST] + rest)}"
    return origin.error(
        KernelError, problem, expected=expected, found=found, do=f"move {quote(away[:MOST])} to {home} before the call"
    )


def is_about_devices(error: BaseException) -> bool:
    """Return True if an exception may have been raised because tensors are on several devices."""
    return ABOUT_DEVICES.search(str(error)) is not None


def devices_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, torch.device]]:
    """Yield arguments with their devices; of a list whose tensors are on several each item."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value.device
        elif isinstance(value, (list, tuple)):
            items = dict(devices_of({f"{name}[{place}]": item for place, item in enumerate(value)}))
            places = set(items.values())
            yield from items.items() if len(places) > 1 else ((name, place) for place in places)


def without_numbers(value: Any) -> Any:
    """Return an argument without its zero-dimensional tensors on the CPU, which go with tensors of any device."""
    if isinstance(value, (list, tuple)):
        return [without_numbers(item) for item in value]
    return None if isinstance(value, Tensor) and value.dim() == 0 and value.device.type == "cpu" else value


ONE_DEVICE = "all tensors on one device, but for zero-dimensional ones on the CPU"
MOST = 6
NUMBERS = {2: "two", 3: "three", 4: "four"}

ABOUT_DEVICES = re.compile(
    r"same device|on (two|three|four|\d+) devices"  # of PyTorch, and of this package
    r"|but expected (it to be )?on|weight type \(.*\) should be the same"  # of PyTorch for MPS, and of its convolutions
    r"|with arguments from the|cannot be accessed from Triton"  # of the dispatcher, and of Triton's launcher
)


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
