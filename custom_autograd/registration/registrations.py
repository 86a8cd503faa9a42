"""Registrations: everything that is registered for one op besides kernels, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, TypeAlias, TypeVar, cast

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.rule_types import (
    Autocast,
    Backward,
    DropIn,
    Fake,
    Gradient,
    Inline,
    Jvp,
    Reference,
    Registration,
    Samples,
    TorchDispatch,
    Vmap,
)

R = TypeVar("R", bound=Registration)

Key: TypeAlias = tuple[type[Registration], str]
"""What tells registrations apart that one capability declares: the class, and the part of the op."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """Everything that is registered for one op, besides kernels. Replaced as a whole, never changed."""

    backward: Backward | None = None
    gradients: tuple[Gradient, ...] = ()
    drop_in: DropIn | None = None
    jvp: Jvp | None = None
    fake: Fake | None = None
    reference: Reference | None = None
    vmap: Vmap | None = None
    samples: Samples | None = None
    inline: Inline | None = None
    autocast: Mapping[str, Autocast] = field(default_factory=dict[str, Autocast])
    torch_dispatch: Mapping[type, TorchDispatch] = field(default_factory=dict[type, TorchDispatch])
    others: Mapping[Key, Registration] = field(default_factory=dict[Key, Registration])

    def get(self, cls: type[R]) -> R | None:
        """Return what is registered of a type that one capability declares, or None."""
        return cast(R | None, self.others.get((cls, "")))

    def all_of(self, cls: type[R]) -> tuple[R, ...]:
        """Return all that are registered of a type, one for each part of the op."""
        return tuple(one for one in self.others.values() if isinstance(one, cls))

    def all(self) -> tuple[Registration, ...]:
        """Return all registrations."""
        single = (self.jvp, self.fake, self.reference, self.vmap, self.samples, self.inline)
        present = tuple(one for one in single if one is not None)
        several = (*self.autocast.values(), *self.torch_dispatch.values(), *self.others.values())
        return (*self.gradient_rules(), *present, *several)

    def gradient_rules(self) -> tuple[Backward | Gradient | DropIn, ...]:
        """Return the rules that return gradients: one whole backward, or one per input or group of inputs."""
        return (*self.named_gradient_rules(), *(() if self.drop_in is None else (self.drop_in,)))

    def named_gradient_rules(self) -> tuple[Backward | Gradient, ...]:
        """Return those that are bound by the names of their parameters."""
        return self.gradients if self.backward is None else (self.backward, *self.gradients)

    def left_out_of(self, later: Registrations) -> tuple[Registration, ...]:
        """Return what is not among later registrations: what a new one has replaced."""
        kept = {id(one) for one in later.all()}
        return tuple(one for one in self.all() if id(one) not in kept)

    def with_(self, new: Registration) -> Registrations:
        """Return these registrations with a new one, without those that it replaces."""
        match new:
            case Backward():
                return replace(self, backward=new, gradients=(), drop_in=None)
            case DropIn():
                return replace(self, backward=None, gradients=(), drop_in=new)
            case Gradient():
                return replace(self, backward=None, gradients=self._gradients_with(new), drop_in=None)
            case Autocast():
                return replace(self, autocast={**self.autocast, new.policy.device_type: new})
            case TorchDispatch():
                return replace(self, torch_dispatch={**self.torch_dispatch, new.cls: new})
            case Jvp() | Fake() | Reference() | Vmap() | Samples() | Inline():
                single: dict[str, Any] = {new.kind: new}  # the field has the name of the kind (Any: its own class)
                return replace(self, **single)
            case _:
                return replace(self, others={**self.others, (type(new), new.part): new})

    def _gradients_with(self, new: Gradient) -> tuple[Gradient, ...]:
        kept = {one.named: one for one in self.gradients if one.named == new.named or not one.overlaps(new)}
        return tuple({**kept, new.named: new}.values())
