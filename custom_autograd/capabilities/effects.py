"""Effects: how compilers order calls of an op with respect to calls of other ops that have effects."""

from __future__ import annotations

from typing import Any

from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.messages import show
from custom_autograd.registration.capability import Capability, add, registered
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Effect
from custom_autograd.torch_private.definitions import EFFECTS, register_effect


class Effects(Capability):
    """The effect from `register_effect`."""

    name = "effect"

    def attach(self, record: OpRecord) -> None:
        """Register the effect; a later one replaces the one before."""
        rule = record.registrations.get(Effect)
        if rule is not None:
            assert record.definition.library is not None
            register_effect(record.definition.library, str(record.definition.name), rule.effect)

    def describe(self, record: OpRecord) -> str:
        """Return the effect, or that compilers may reorder calls."""
        return registered(record.registrations.get(Effect)) or "none: compilers may reorder calls"


def register(record: OpRecord, effect: Any) -> None:  # Any: torch's EffectType, which has no public name, or None
    """Register an effect, which replaces the one before."""
    if effect is not None and effect not in EFFECTS:
        raise record.declaration.error(
            RegistrationError,
            "register_effect takes an effect of torch, or None",
            expected=f"{', '.join(map(str, EFFECTS))} or None",
            found=show(effect),
            do=f"pass torch._library.effects.{EFFECTS[0]}, which keeps the calls in order",
        )
    if effect is not None and record.is_inlined:
        raise record.declaration.error(
            RegistrationError,
            "an op that is inlined into compiled graphs cannot have an effect: what takes its place has none",
            do="leave inline= out: the effect then orders the calls of the op",
        )
    add(record, Effect(f"register_effect({effect})", effect), replace=True)
