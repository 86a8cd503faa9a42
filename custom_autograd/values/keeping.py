"""Keeps what runs at a dispatch key of an op, until something changes."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from custom_autograd.registration.road import Road
from custom_autograd.torch_private.registered_kernels import changes
from custom_autograd.values import validation


def keep(road: Road, kind: str, key: str | None, make: Callable[[], Any]) -> Any:  # Any: what `make` returns
    """Return what runs there now, and keep it unless something changes meanwhile.

    While a `validation(...)` is open in any thread nothing is kept, since it holds in that thread only.

    Args:
        road: of the op.
        kind: the attribute of the road.
        key: where it is kept there.
        make: finds what runs.
    """
    epoch, made = changes.count, make()
    with changes.lock:
        if epoch == changes.count and not validation.is_overridden():
            changes.tell_once(road.forget)
            kept: MutableMapping[str | None, Any] = getattr(road, kind)
            kept[key] = made
    return made
