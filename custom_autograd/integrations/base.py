"""Integration: how one subsystem of PyTorch learns about an op."""

from __future__ import annotations

from typing import Protocol

from custom_autograd.registration.registry import Entry


class Integration(Protocol):
    """One subsystem of PyTorch.

    Attributes:
        name: of the capability, as `capabilities()` lists it.
    """

    name: str

    def attach(self, entry: Entry) -> None:
        """Registers with the dispatcher what the op needs for this subsystem; called again for an op that moves."""

    def describe(self, entry: Entry) -> str:
        """Where the capability comes from: "registered (file:line)", "derived from ...", or "missing: ..."."""
        ...


def registered(entry: Entry, slot: str) -> str | None:
    """The description of a registered rule, or None where the slot is empty."""
    rule = entry.find(slot)
    return None if rule is None else f"registered ({rule.location})"
