"""Proofs: what runs in place of the dispatcher, for calls under dispatch keys at which nothing else would act.

See direct_calls.py for what such a proof says, and who recognises the calls it is about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from custom_autograd.calls.arithmetic import is_arithmetic
from custom_autograd.dispatch.generated import GeneratedOp, generated_code_of
from custom_autograd.registration import dispatcher_library as library
from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.size_checks import find_size_check
from custom_autograd.torch_private import guards
from custom_autograd.torch_private import registered_kernels as registrations
from custom_autograd.torch_private.registered_kernels import changes

Function = Callable[..., Any]  # Any: takes and returns what the schema says
Recorder: TypeAlias = Callable[[GeneratedOp, Function], Function]
"""Makes, of a kernel, what runs it and records a node: a method of GeneratedOp."""


class Proof(NamedTuple):
    """What one kind of call runs.

    Attributes:
        function: the kernel.
        record: what records a call that requires a gradient, or None.
        is_checked: the results of the kernel are to be looked at.
    """

    function: Function
    record: Function | None
    is_checked: bool


class Prover:
    """Proves direct calls of one op."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._deciding = overriding(record.capabilities, Capability.is_direct)
        self._foreign: tuple[int, frozenset[str]] = (-1, frozenset())
        self._own: tuple[int, frozenset[str]] = (-1, frozenset())

    def may_be_direct(self, tensors: Sequence[Tensor]) -> bool:
        """Return False if a capability sends calls with these tensors through the dispatcher now."""
        return all(capability.is_direct(self._record, tensors) for capability in self._deciding)

    def prove(
        self, device_type: str, seen: frozenset[str], shared: frozenset[str], is_tracked: bool, recorder: Recorder
    ) -> Proof | None:
        """Return what a kind of call runs, or None if it needs the dispatcher.

        Args:
            device_type: of all tensors, which are on one device.
            seen: the dispatch keys that act on any of the tensors, as the dispatcher computes them.
            shared: those that act on all of them.
            is_tracked: a differentiable tensor requires a gradient.
            recorder: makes what records a call.
        """
        record, backend = self._record, guards.backend_of(device_type)
        if not seen <= _allowed(backend) or not record.kernels.serves(device_type):
            return None
        if not self._is_own(seen) and self._find_foreign() & (seen | _ALIASES):
            return None
        generated = generated_code_of(record)
        function = generated.choose(device_type)
        is_recorded = is_tracked and f"Autograd{backend}" in seen
        if is_recorded and generated.recording_facts.keeps_dispatcher:
            return None
        if generated.is_writing and (is_recorded or "ADInplaceOrView" not in shared):
            return None
        record_call = recorder(generated, function) if is_recorded and generated.plan.is_differentiable else None
        return Proof(function, record_call, generated.is_checked)

    def _is_own(self, keys: frozenset[str]) -> bool:
        """Return True if it is quickly seen that no kernel of other code would run at some dispatch keys now."""
        count = changes.count
        if self._own != (count, keys):
            if not registrations.is_own(str(self._record.dispatcher_name), library.FILE, keys):
                return False
            self._own = count, keys
        return True

    def _find_foreign(self) -> frozenset[str]:
        """Return the dispatch keys at which a kernel of other code is registered now."""
        count = changes.count
        if self._foreign[0] != count:
            self._foreign = count, registrations.foreign_keys(str(self._record.dispatcher_name), library.FILE)
        return self._foreign[1]

    def is_blind(self, function: Function) -> bool:
        """Return True if a kernel, called with tensors that require no gradient, cannot tell grad mode."""
        schema = self._record.declaration.schema
        if schema.mutated_arguments or schema.has_converted:
            return False
        checked = find_size_check(function)
        return is_arithmetic(checked.function if checked else function)


_ALIASES = frozenset({"Autograd", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "BackendSelect"})


@functools.cache
def _allowed(backend: str) -> frozenset[str]:
    """Return the keys at which nothing but the op's own two kernels acts."""
    if backend == "Meta":
        return frozenset()
    return frozenset({backend, f"Autograd{backend}", "ADInplaceOrView", "BackendSelect", f"Autocast{backend}"})
