"""Effects: how compilers order calls of an op with respect to calls of other ops that have effects."""

from __future__ import annotations

from custom_autograd.registration.capability import Capability, registered
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private.definitions import register_effect


class Effect(Capability):
    """The effect from `register_effect`."""

    name = "effect"

    def attach(self, entry: Entry) -> None:
        """Register the effect; a later one takes the place of the one before."""
        rule = entry.registrations.effect
        if rule is not None:
            assert entry.library is not None
            register_effect(entry.library, str(entry.home), rule.effect)

    def describe(self, entry: Entry) -> str:
        """Return the effect, or that compilers may reorder calls."""
        return registered(entry.registrations.effect) or "none: compilers may reorder calls"
