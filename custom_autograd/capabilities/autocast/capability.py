"""Autocast: under it, tensors of an op with a policy are cast before the op runs, and autocast is off within."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from custom_autograd.capabilities.autocast.caster import Caster, is_cast, policies_of, without_casts
from custom_autograd.capabilities.autocast.policies import location_of, parse_policy
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration import rule_types
from custom_autograd.registration.capability import Call, Capability, add
from custom_autograd.registration.dispatcher_library import implement
from custom_autograd.registration.one_tuple import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import key_of_device


class Autocast(Capability):
    """One policy per device type, from `register_autocast`."""

    name = "autocast"

    def attach(self, record: OpRecord) -> None:
        """Register a kernel at the Autocast key of each device type with a policy."""
        for device_type in record.registrations.autocast:
            implement(record, f"Autocast{key_of_device(device_type)}", _kernel(record, device_type))

    def is_direct(self, record: OpRecord, tensors: Sequence[Tensor]) -> bool:
        """Return False if a policy is in effect for a tensor."""
        return not record.registrations.autocast or not any(is_cast(record, tensor) for tensor in tensors)

    def around_backward(self, record: OpRecord, backward: Call) -> Call:
        """Switch autocast off in the backward, as it was in the forward."""
        return without_casts(record, backward)

    def around_batched(self, record: OpRecord, batched: Call) -> Call:
        """Apply the policies above the batching kernel, which runs above the Autocast key."""
        return Caster(record).around(batched)

    def describe(self, record: OpRecord) -> str:
        """Return the policies, or that autocast leaves the op alone."""
        policies = [f"{policy.device_type}: {policy.text}" for policy in policies_of(record)]
        return f"registered: {'; '.join(policies)}" if policies else "none: inputs keep their dtype"


def _kernel(record: OpRecord, device_type: str) -> Callable[..., Any]:
    caster = Caster(record)

    @outside_compilation
    def autocast(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema says
        policy = record.registrations.autocast[device_type].policy
        return caster.run(policy, opened(record), *args, **kwargs)

    return autocast


def register(record: OpRecord, device_type: str, inputs: Any, output: Any, *, replace: bool) -> None:
    """Register an autocast policy (Any: what the author wrote; see `parse_policy`)."""
    adapter = adapter_of(record.declaration)
    policy = parse_policy(record.declaration, device_type, adapter.by_name(inputs), adapter.by_name(output))
    add(record, rule_types.Autocast(location_of(device_type, policy.text), policy), replace=replace)
