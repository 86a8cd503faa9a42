"""Autocast: under it, tensors of an op with a policy are cast before the op runs, and autocast is off within."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.device_types import advice_on, has_index, is_known, name_of
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.execution.bind import Binder
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Call, Capability, add
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.dispatcher_library import implement, opened
from custom_autograd.registration.policy_types import INPUT_WORDS, KEEP, OUTPUT_WORDS, PROMOTE, Cast, CastPolicy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Registration
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import is_any_autocast_enabled, key_of_device, without_autocast
from custom_autograd.torch_private.transforms import depth
from custom_autograd.values.tensors import mapped, tensors_in


@dataclass(frozen=True, slots=True)
class AutocastRule(Registration):
    """The casts under autocast on one device type, from `register_autocast`."""

    kind = "autocast"
    policy: CastPolicy

    @property
    def part(self) -> str:
        """Return the device type."""
        return self.policy.device_type


def parse_policy(declaration: Declaration, device_type: str, inputs: Any, output: Any) -> CastPolicy:
    """Read a policy (Any: whatever the author wrote)."""
    text = show_casts(inputs) if output is None else f"{show_casts(inputs)}, output {show_casts(output)}"
    reader = _Reader(declaration, location_of(device_type, text))
    device_type = name_of(device_type)
    reader.check_device(device_type)
    return CastPolicy(device_type, text, reader.inputs(inputs), reader.outputs(output))


def location_of(device_type: str, text: str) -> str:
    """Return what messages call a policy, which is not a function with a line of its own."""
    return f"register_autocast({device_type!r}, {text})"


def show_casts(casts: Any) -> str:  # Any: as above
    """Return what the author wrote, in one line."""
    if isinstance(casts, Mapping):
        return "{" + ", ".join(f"{show(name)}: {show(cast)}" for name, cast in casts.items()) + "}"
    return show(casts)


class _Reader:
    def __init__(self, declaration: Declaration, location: str) -> None:
        self.origin = declaration.origin(location)
        self.schema = declaration.schema

    def check_device(self, device_type: object) -> None:
        """Refuse a device type without autocast."""
        if not _has_autocast(device_type):
            raise self.origin.error(
                RegistrationError,
                "the device type has no autocast",
                expected="'cpu', 'cuda', ...",
                found=show(device_type),
                do=_advise_device(device_type),
            )

    def inputs(self, casts: Any) -> dict[str, Cast]:  # Any: whatever the author wrote
        """Return the cast of each argument. One for all leaves out what must stay the caller's own tensor."""
        named = [argument.name for argument in self.schema.tensor_arguments]
        own = self._kept()
        if not isinstance(casts, Mapping):
            self._check(casts, "all arguments", INPUT_WORDS)
            return {name: casts for name in named if name not in own and casts != KEEP}
        for name, cast in casts.items():
            self._check_name(name, named, self.schema.argument_names, "not a tensor argument")
            self._check(cast, f"'{name}'", INPUT_WORDS)
            if name in own and cast != KEEP:
                raise self.origin.error(
                    RegistrationError,
                    f"autocast cannot cast '{name}', which {own[name]}",
                    expected=f"{show(name)}: 'keep'",
                    found=f"{show(name)}: {show(cast)}",
                    do=f"leave '{name}' out",
                )
        return {name: cast for name, cast in casts.items() if cast != KEEP}

    def outputs(self, casts: Any) -> dict[str, Cast]:  # Any: whatever the author wrote
        """Return the cast of each output that a call returns and that shares no memory."""
        if casts is None:
            return {}
        fresh = [o.name for o in self.schema.visible_outputs if o.holds_tensors and o.alias_of is None]
        if not isinstance(casts, Mapping):
            self._check(casts, "the output", OUTPUT_WORDS)
            return {name: casts for name in fresh if casts != KEEP}
        for name, cast in casts.items():
            self._check_name(name, fresh, self.schema.output_names, "not a tensor that the call creates")
            self._check(cast, f"output '{name}'", OUTPUT_WORDS)
        return {name: cast for name, cast in casts.items() if cast != KEEP}

    def _kept(self) -> dict[str, str]:
        """Return arguments that must stay the caller's own tensors, and why."""
        viewed = {output.alias_of for output in self.schema.outputs if output.is_view}
        reasons = {name: "an output is a view of: it would be a view of a copy" for name in viewed if name}
        written = {a.name: "the op writes to: it would write to a copy" for a in self.schema.mutated_arguments}
        return {**reasons, **written}

    def _check_name(self, name: object, valid: Sequence[str], existing: Sequence[str], kind: str) -> None:
        if name in valid:
            return
        is_known = name in existing
        raise self.origin.error(
            RegistrationError,
            f"autocast names {show(name)}, which is {kind if is_known else 'not a name of the op'}",
            expected=quote(valid),
            found=show(name),
            do=None if is_known or not isinstance(name, str) else suggest(name, valid),
        )

    def _check(self, cast: Any, what: str, words: Sequence[str]) -> None:  # Any: whatever the author wrote
        if isinstance(cast, torch.dtype) and cast.is_floating_point:
            return
        if isinstance(cast, str) and cast in words:
            return
        raise self.origin.error(
            RegistrationError,
            f"autocast casts {what} to a floating-point dtype, or as a word declares",
            expected=f"torch.bfloat16, ..., {', '.join(map(repr, words))}",
            found=show(cast),
            do=_advice(cast, words) if isinstance(cast, str) else None,
        )


def _advice(word: str, words: Sequence[str]) -> str | None:
    is_dtype = isinstance(getattr(torch, word, None), torch.dtype)
    return f"write torch.{word}" if is_dtype else suggest(word, words)


def _has_autocast(device_type: object) -> bool:
    try:
        if not isinstance(device_type, str) or torch.device(device_type).type != device_type:  # "cuda:0" is not a type
            return False
        return torch.amp.is_autocast_available(device_type)
    except RuntimeError:  # there is no such device type
        return False


def _advise_device(device_type: object) -> str:
    if not isinstance(device_type, str):
        return "give the name of a device type, such as 'cuda'"
    if has_index(device_type) or not is_known(device_type):
        return advice_on(device_type)
    return "leave the policy out; an out-of-tree backend has autocast if its module defines get_amp_supported_dtype"


# Runs a call of an op under autocast as its policy says: inputs cast, autocast off below, outputs cast.
#
# NOTE [one application per call]
# Under `torch.func` a call descends level by level, and each level puts back the modes that the caller had: so the
# dispatcher comes by the Autocast key once per level. Inputs that were cast stay as they are, but a second cast of an
# output would be hidden from the levels above. So only the call that meets autocast first casts; those it leads to at
# levels further down run as they are.


def policies_of(record: OpRecord) -> tuple[CastPolicy, ...]:
    """Return what is registered, one policy for each device type."""
    return tuple([rule.policy for rule in record.registrations.all_of(AutocastRule)])


def policies_in_effect(record: OpRecord, values: Sequence[Any]) -> list[CastPolicy]:  # Any: arguments of a call
    """Return the policies for which autocast is on, where a call has a tensor on their device type."""
    if not is_any_autocast_enabled():
        return []
    enabled = [policy for policy in policies_of(record) if torch.is_autocast_enabled(policy.device_type)]
    devices = {tensor.device.type for tensor in tensors_in(values)} if enabled else ()
    return [policy for policy in enabled if policy.device_type in devices]


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
            for policy in policies_in_effect(self._record, (*args, *kwargs.values())):
                found = partial(self.run, policy, found)
            return found(*args, **kwargs)

        return cast

    def run(self, policy: CastPolicy, call: Call, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call of the op under one policy."""
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
        """Return the results, cast as the policy declares."""
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


def _switched_off(device_type: str, backward: Call) -> Call:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(device_type):
            return backward(*args, **kwargs)
        with torch.autocast(device_type, enabled=False):  # Dynamo traces this one, also where it compiles a backward
            return backward(*args, **kwargs)

    return run


def _cast_inputs(policy: CastPolicy, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, cast as the policy declares."""
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
    return mapped(lambda tensor: tensor.to(dtype) if policy.is_castable(tensor) else tensor, value)


class AutocastCapability(Capability):
    """One policy per device type, from `register_autocast`."""

    name = "autocast"

    def attach(self, record: OpRecord) -> None:
        """Register a kernel at the Autocast key of each device type with a policy."""
        for rule in record.registrations.all_of(AutocastRule):
            device_type = rule.policy.device_type
            implement(record, f"Autocast{key_of_device(device_type)}", make=partial(_kernel, record, device_type))

    def is_direct(self, record: OpRecord, tensors: Sequence[Tensor]) -> bool:
        """Return False if a policy is in effect for a tensor."""
        return not policies_in_effect(record, tensors)

    def around_backward(self, record: OpRecord, backward: Call) -> Call:
        """Switch autocast off in the backward where the op has a policy, as it was in the forward."""
        for policy in policies_of(record):
            backward = _switched_off(policy.device_type, backward)
        return backward

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
    def autocast(*args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares
        rule = record.registrations.get(AutocastRule, device_type)
        assert rule is not None  # it is attached for a rule, which only another one can replace
        return caster.run(rule.policy, opened(record), *args, **kwargs)

    return autocast


def register(record: OpRecord, device_type: str, inputs: Any, output: Any, *, replace: bool) -> None:
    """Register an autocast policy (Any: what the author wrote; see `parse_policy`)."""
    adapter = adapter_of(record.declaration)
    policy = parse_policy(record.declaration, device_type, adapter.by_name(inputs), adapter.by_name(output))
    add(record, AutocastRule(location_of(device_type, policy.text), policy), replace=replace)
