"""Selective activation checkpointing never loses what an op writes.

In the recomputation it returns the outputs that a policy saved, and does not run the op. What a mutating op wrote is
not among its outputs: tensors computed again would miss it. So a mutating op is run again, unless the policy is
MUST_SAVE, which raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import quote
from custom_autograd.execution.bind import Binder
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord, find_record
from custom_autograd.registration.rule_types import Registration
from custom_autograd.torch_private.dispatch import OpOverload, register_torch_dispatch
from custom_autograd.torch_private.saved_tensors import (
    CACHING_MODES,
    Policy,
    caching_modes,
    dispatch_with_policy,
    saved_tensors,
)
from custom_autograd.torch_private.storages import storages_of
from custom_autograd.values.tensors import tensors_in

SAVE, RECOMPUTE = DEFAULTS = "save", "recompute"
RECOMPUTING = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Checkpoint(Registration):
    """The default of an op under `checkpointing()`, from `custom_op(..., checkpoint=...)`.

    Attributes:
        default: "save" or "recompute".
    """

    kind = "checkpoint"
    default: str


class Checkpointing(Capability):
    """Calls of a mutating op in the modes of selective checkpointing."""

    name = "checkpointing"

    def attach(self, record: OpRecord) -> None:
        """Register it for the modes that torch has."""
        if record.declaration.schema.mutated_arguments:
            _register(record, CACHING_MODES)

    def before_write(self, record: OpRecord) -> None:
        """Register it for subclasses of those modes, which can be known only when they are used."""
        _register(record, caching_modes())

    def describe(self, record: OpRecord) -> str:
        """Return whether a policy may save the op."""
        if record.declaration.schema.mutated_arguments:
            return "derived: the op runs again, and a policy that saves it raises"
        rule = record.registrations.get(Checkpoint)
        if rule is not None:
            return f"declared ({rule.location}): {rule.default}, unless a policy says otherwise"
        return "derived: policies may save the op or compute it again"


def default_of(overload: OpOverload) -> str | None:
    """Return "save" or "recompute" if the op of an overload is declared so, else None."""
    record = find_record(overload.name().partition(".")[0])
    if record is None or record.overload is not overload:
        return None
    rule = record.registrations.get(Checkpoint)
    return None if rule is None else rule.default


def _register(record: OpRecord, modes: Iterable[type]) -> None:
    for mode in modes:
        slot = f"checkpoint {mode.__module__}.{mode.__qualname__}"
        if slot not in record.definition.attached:
            assert record.definition.library is not None
            register_torch_dispatch(record.definition.library, record.definition.name.name, mode, _rule(record))
            record.definition.attached.add(slot)


def _rule(record: OpRecord) -> Callable[..., Any]:
    """Return what a mutating op does in a mode of selective checkpointing."""
    bind, change = Binder(record.declaration.schema), _without_saving(record)

    def rule(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: as torch passes it
        _check_targets(record, bind.raw(*args, **(kwargs or {})), saved_tensors(mode))
        return dispatch_with_policy(change, mode, func, types, args, kwargs)

    return rule


def _check_targets(record: OpRecord, values: Mapping[str, Any], saved: Sequence[Tensor]) -> None:
    """Refuse to write to a tensor that was saved: the recomputation would write to it a second time."""
    if not saved:
        return
    taken: set[int] = set().union(*(storages_of(tensor) or () for tensor in saved))
    for argument in record.declaration.schema.mutated_arguments:
        for tensor in tensors_in([values[argument.name]]):
            if not taken.isdisjoint(storages_of(tensor) or ()):
                problem = f"the op writes to '{argument.name}', which selective checkpointing has saved"
                raise record.declaration.error(
                    GradientError,
                    f"{problem}: run again, it would write twice",
                    do=f"leave the op that makes '{argument.name}' out of the policy, or write to a copy of it",
                )


def _without_saving(record: OpRecord) -> Callable[[Policy], Policy]:
    """Return what makes from a policy another one, which never saves the op."""

    def change(given: Policy) -> Policy:
        def policy(*args: Any, **kwargs: Any) -> CheckpointPolicy:  # Any: as torch passes it
            wanted = given(*args, **kwargs)
            if wanted is True or wanted is CheckpointPolicy.MUST_SAVE:
                raise _lost_write(record)
            return wanted if wanted in RECOMPUTING else CheckpointPolicy.PREFER_RECOMPUTE

        return policy

    return change


def _lost_write(record: OpRecord) -> GradientError:
    written = quote(argument.name for argument in record.declaration.schema.mutated_arguments)
    return record.declaration.error(
        GradientError,
        f"a policy of selective checkpointing saves the op, and what it writes to {written} would be lost",
        expected="CheckpointPolicy.PREFER_SAVE, PREFER_RECOMPUTE or MUST_RECOMPUTE, which all run the op again",
        found="CheckpointPolicy.MUST_SAVE",
        do="leave the op out of the policy, or make it return new tensors",
    )
