"""Capability: how one subsystem of PyTorch learns about an op, and what it adds to its calls.

Rooms below `capabilities/` call the hooks through the record of an op, so that they need not know which subsystems
there are. The defaults do nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from custom_autograd.registration.registry import OpRecord
    from custom_autograd.registration.rule_types import Registration

Call: TypeAlias = Callable[..., Any]
"""A call of an op, or its backward (Any: takes and returns what the schema declares)."""


class Capability:
    """One subsystem of PyTorch.

    Attributes:
        name: of the capability, as `capabilities()` lists it.
    """

    name: str

    def attach(self, record: OpRecord) -> None:
        """Register with the dispatcher what the op needs; called again after each change, and for an op that moves."""

    def describe(self, record: OpRecord) -> str:
        """Return where it comes from: "registered (file:line)", "derived from ...", "none: ..." or "missing: ..."."""
        raise NotImplementedError

    def is_direct(self, record: OpRecord, tensors: Sequence[Tensor]) -> bool:
        """Return False if a call with these tensors must go through the dispatcher now."""
        return True

    def around_kernel(self, record: OpRecord, kernel: Call) -> Call:
        """Return what runs in place of a kernel, unless nothing is to be checked (`validation("off")`)."""
        return kernel

    def around_backward(self, record: OpRecord, backward: Call) -> Call:
        """Return what runs in place of the backward of an op."""
        return backward

    def around_batched(self, record: OpRecord, batched: Call) -> Call:
        """Return what runs in place of the batching kernel, which functorch calls above all other keys."""
        return batched

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Add to a TypeError or NotImplementedError of a call what to do; return True if the call can be repeated."""
        return False

    def before_write(self, record: OpRecord) -> None:
        """Prepare a call of a mutating op while a mode of `__torch_dispatch__` is in effect."""

    def before_trace(self, record: OpRecord, arguments: Mapping[str, Any]) -> None:
        """Note that the fake of the op runs, with arguments by name: a graph that is compiled now may hold the op."""


@functools.cache
def overriding(capabilities: tuple[Capability, ...], hook: Callable[..., Any]) -> tuple[Capability, ...]:
    """Return the capabilities whose class has a hook of its own (Any: a method of Capability, of any signature)."""
    return tuple(one for one in capabilities if getattr(type(one), hook.__name__) is not hook)


def attach_all(record: OpRecord) -> None:
    """Attach what is registered for an op now to every subsystem of PyTorch."""
    for capability in overriding(record.capabilities, Capability.attach):
        capability.attach(record)


def add(record: OpRecord, new: Registration, *, replace: bool) -> None:
    """Register a rule or a policy, and let every subsystem see the change."""
    with record.lock:
        record.add(new, replace=replace)
        attach_all(record)


def registered(rule: Registration | None) -> str | None:
    """Return the description of a rule, or None if there is none."""
    return None if rule is None else f"registered ({rule.location})"
