"""Road: what the functions that are registered with the dispatcher run now."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from custom_autograd.torch_private.registered_kernels import changes
from custom_autograd.values import validation

Call = Callable[..., Any]  # Any: takes and returns what the schema says


class Road:
    """What runs at the dispatch keys of one op, found at the first call and kept until something changes.

    The dispatcher cannot exchange a kernel: what is registered there looks here in each call.

    Attributes:
        autograd: at the Autograd key, by None: (keyset, *args, **kwargs).
        kernels: at the key of a backend, by device type.
        batched: at the key of vmap, by None: what returns None for calls that need the general way.
    """

    __slots__ = ("__weakref__", "autograd", "batched", "kernels")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop it all: a rule, a kernel or the level of validation has changed."""
        self.autograd: dict[None, Call] = {}
        self.batched: dict[None, Any] = {}
        self.kernels: dict[str | None, Call] = {}

    def keep(self, kind: str, key: str | None, make: Callable[[], Any]) -> Any:  # Any: what `make` returns
        """Return what runs there now, and keep it unless something changes meanwhile.

        While a `validation(...)` is open in any thread nothing is kept, since it holds in that thread only.
        """
        epoch, made = changes.count, make()
        with changes.lock:
            if epoch == changes.count and not validation.is_overridden():
                changes.tell_once(self.forget)
                kept: MutableMapping[str | None, Any] = getattr(self, kind)
                kept[key] = made
        return made
