"""Tensor subclasses and modes: what an op does for one of them, from `register_torch_dispatch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private.dispatch import register_torch_dispatch

SLOT = "torch_dispatch "


def slot_of(cls: type) -> str:
    """The slot of the rule for a class."""
    return f"{SLOT}{cls.__module__}.{cls.__qualname__}"


class Subclasses:
    """One rule per subclass or mode; all others take the op apart through their own `__torch_dispatch__`."""

    name = "torch_dispatch"

    def attach(self, entry: Entry) -> None:
        """Registers each rule, once."""
        for slot, rule in entry.rules.items():
            if slot.startswith(SLOT) and slot not in entry.attached:
                assert entry.library is not None
                register_torch_dispatch(entry.library, entry.home.name, rule.extra["cls"], _dispatch(entry, slot))
                entry.attached.add(slot)

    def describe(self, entry: Entry) -> str:
        """The classes that have a rule."""
        classes = [slot.removeprefix(SLOT) for slot in entry.rules if slot.startswith(SLOT)]
        return f"registered: {', '.join(classes)}" if classes else "none: each class's own __torch_dispatch__"


def _dispatch(entry: Entry, slot: str) -> Callable[..., Any]:
    def dispatch(
        *args: Any, **kwargs: Any
    ) -> Any:  # Any: (mode or class, func, types, args, kwargs), as torch passes it
        return entry.rules[slot].function(*args, **kwargs)

    return dispatch
