"""Runs a call of an op under autocast as its policy says: inputs cast, autocast off below, outputs cast.

NOTE [one application per call]
Under `torch.func` a call descends level by level, and each level puts back the modes that the caller had: so the
dispatcher comes by the Autocast key once per level. Inputs that were cast stay as they are, but a second cast of an
output would be hidden from the levels above. So only the call that meets autocast first casts; those it leads to at
levels further down run as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_autograd.calls.bind import Binder
from custom_autograd.core.casting import PROMOTE, CastPolicy
from custom_autograd.registration.capability import Call
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.dispatch import without_autocast
from custom_autograd.torch_private.transforms import depth
from custom_autograd.values.tensors import tensors_in


def policies_of(record: OpRecord) -> tuple[CastPolicy, ...]:
    """Return what is registered, one policy for each device type."""
    return tuple([rule.policy for rule in record.registrations.autocast.values()])


def is_cast(record: OpRecord, tensor: Tensor) -> bool:
    """Return True if a policy is in effect for a tensor."""
    device_type = tensor.device.type
    return device_type in record.registrations.autocast and torch.is_autocast_enabled(device_type)


class _Depths(threading.local):
    """By op, the level of `torch.func` of the call that casts."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}


_depths = _Depths()


class Caster:
    """Applies the policies of one op."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._bind = Binder(record.declaration.schema)

    def around(self, call: Call) -> Call:
        """Return what runs the op under all policies for which autocast is on, and is itself above the Autocast key."""

        def cast(*args: Any, **kwargs: Any) -> Any:
            found = call
            for policy in self._in_effect(*args, **kwargs):
                found = partial(self.run, policy, found)
            return found(*args, **kwargs)

        return cast

    def _in_effect(self, /, *args: Any, **kwargs: Any) -> tuple[CastPolicy, ...]:
        """Return the policies for which autocast is on, where the call has a tensor on their device type."""
        enabled = [p for p in policies_of(self._record) if torch.is_autocast_enabled(p.device_type)]
        if not enabled:
            return ()
        devices = {tensor.device.type for tensor in tensors_in((*args, *kwargs.values()))}
        return tuple(policy for policy in enabled if policy.device_type in devices)

    def run(self, policy: CastPolicy, call: Call, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call of the op under one policy.

        Args:
            policy: for a device type for which autocast is on.
            call: calls the op; below it, autocast is off.
            args: as the dispatcher hands them on (Any: what the schema says, as below).
            kwargs: ditto.
        """
        key, here = id(self._record), depth()
        outer = _depths.of.get(key)
        with without_autocast(policy.device_type):
            if outer is not None and here < outer:
                return call(*args, **kwargs)
            arguments = self._bind.raw(*args, **kwargs)
            positional, keywords = self._bind.call(_cast_inputs(policy, arguments))
            if not policy.outputs or not here:
                return self._outputs(policy, arguments, call(*positional, **keywords))
            _depths.of[key] = here
            try:
                result = call(*positional, **keywords)
            finally:
                if outer is None:
                    del _depths.of[key]
                else:
                    _depths.of[key] = outer
            return self._outputs(policy, arguments, result)

    def _outputs(self, policy: CastPolicy, arguments: Mapping[str, Any], result: Any) -> Any:
        """Return the results, cast where the policy says so."""
        if not policy.outputs:
            return result
        floating = [t for t in tensors_in(list(arguments.values())) if t.is_floating_point()]
        given = next((tensor.dtype for tensor in floating if tensor.device.type == policy.device_type), None)
        outputs = self._record.declaration.schema.outputs
        results = [result] if len(outputs) == 1 else list(result)
        for index, output in enumerate(outputs):
            if output.name in policy.outputs:
                dtype = policy.dtype_of(policy.outputs[output.name], given)
                results[index] = _cast(results[index], policy, dtype)
        return results[0] if len(outputs) == 1 else tuple(results)


def without_casts(record: OpRecord, backward: Call) -> Call:
    """Return the backward of an op, with autocast off where the op has a policy: as its forward ran."""
    for policy in policies_of(record):
        backward = _switched_off(policy.device_type, backward)
    return backward


def _switched_off(device_type: str, backward: Call) -> Call:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(device_type):
            return backward(*args, **kwargs)
        with torch.autocast(device_type, enabled=False):  # Dynamo traces this one, also where it compiles a backward
            return backward(*args, **kwargs)

    return run


def _cast_inputs(policy: CastPolicy, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, cast where the policy says so."""
    promoting = [arguments[name] for name, cast in policy.arguments.items() if cast == PROMOTE]
    widest = policy.promoted(t.dtype for t in tensors_in(promoting) if policy.is_castable(t))
    return {
        name: _cast(value, policy, policy.dtype_of(policy.arguments[name], widest))
        if name in policy.arguments
        else value
        for name, value in arguments.items()
    }


def _cast(value: Any, policy: CastPolicy, dtype: torch.dtype | None) -> Any:
    """Return a tensor, or each of a list, in the dtype; whatever autocast leaves alone stays as it is."""
    if dtype is None:
        return value
    if isinstance(value, Tensor):
        return value.to(dtype) if policy.is_castable(value) else value
    if isinstance(value, (list, tuple)):
        return [_cast(item, policy, dtype) for item in value]
    return value
