"""Proofs: which calls of an op native code may run in place of the dispatcher.

What the dispatcher does with a call follows from the dispatch keys of the tensors, the keys that modes and transforms
include or exclude, and the kernels at those keys. Where these are such that nothing but this op's own Autograd kernel
and its own backend kernel would act, running the two directly is the same. Native code recognises calls under the same
keys (native/source/kinds.h); everything else takes the dispatcher's way:

- other dispatch keys than those of `_allowed`: subclasses, modes, transforms, tracing, autocast with a rule, lazy
  conjugation, sparse, quantised or nested tensors, ...
- a kernel that other code registered, and any registration since the proof (`changes`);
- a torch that is newer than all that were tested (versions.py);
- ops that return views, and writes to what requires a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from custom_autograd.core.locks import ThreadLock
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.registration import dispatcher_library as library
from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import definitions as registrations
from custom_autograd.torch_private import dispatch, guards, versions
from custom_autograd.torch_private.definitions import changes
from custom_autograd.values import validation

Function = Callable[..., Any]  # Any: takes and returns what the schema declares

_closed = int(versions.warn_if_untested())
_lock = ThreadLock()  # a finalizer may call an op while it is held


class Proof(NamedTuple):
    """What one kind of call runs.

    Attributes:
        function: the kernel.
        record: runs and records a call that requires a gradient, where native code cannot; or None.
        is_checked: the results of the kernel are to be looked at.
    """

    function: Function
    record: Function | None
    is_checked: bool


class Prover:
    """Proves what calls of one op run. All proofs are void at the next change of what is registered."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._deciding = overriding(record.capabilities, Capability.is_direct)
        self._foreign: tuple[int, frozenset[str]] = (-1, frozenset())
        self._own: tuple[int, frozenset[str]] = (-1, frozenset())

    def prove(
        self,
        tensors: Sequence[Tensor],
        device_type: str,
        seen: frozenset[str],
        shared: frozenset[str],
        is_tracked: bool,
    ) -> Proof | None:
        """Return what a kind of call runs, or None if it needs the dispatcher."""
        if _closed or validation.is_overridden() or dispatch.are_lazy_bits_ignored():
            return None
        if not all(capability.is_direct(self._record, tensors) for capability in self._deciding):
            return None
        return self._prove(device_type, seen, shared, is_tracked=is_tracked)

    def _prove(
        self, device_type: str, seen: frozenset[str], shared: frozenset[str], *, is_tracked: bool
    ) -> Proof | None:
        record, backend = self._record, guards.backend_of(device_type)
        if not seen <= _allowed(backend) or not record.kernels.serves(device_type) or record.declaration.schema.is_view:
            return None
        if not self._is_own(seen) and self._find_foreign() & (seen | _ALIASES):
            return None
        generated = generated_code_of(record)
        is_recorded = is_tracked and f"Autograd{backend}" in seen
        if is_recorded and generated.keeps_dispatcher:
            return None
        if generated.is_writing and (is_recorded or "ADInplaceOrView" not in shared):
            return None
        record_call = generated.record_call if is_recorded and generated.plan.is_differentiable else None
        return Proof(generated.choose(device_type), record_call, generated.is_checked)

    def _is_own(self, keys: frozenset[str]) -> bool:
        """Return True if it is quickly seen that no kernel of other code would run at some dispatch keys now."""
        count = changes.count
        if self._own != (count, keys):
            if not registrations.is_own(str(self._record.definition.name), library.FILE, keys):
                return False
            self._own = count, keys
        return True

    def _find_foreign(self) -> frozenset[str]:
        """Return the dispatch keys at which a kernel of other code is registered now."""
        count = changes.count
        if self._foreign[0] != count:
            self._foreign = count, registrations.foreign_keys(str(self._record.definition.name), library.FILE)
        return self._foreign[1]


_ALIASES = frozenset({"Autograd", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "BackendSelect"})


@functools.cache
def _allowed(backend: str) -> frozenset[str]:
    """Return the keys at which nothing but the op's own two kernels acts."""
    if backend == "Meta":
        return frozenset()
    return frozenset({backend, f"Autograd{backend}", "ADInplaceOrView", "BackendSelect", f"Autocast{backend}"})


@contextmanager
def through_dispatcher() -> Iterator[None]:
    """Send every call of every op, in all threads, through the dispatcher while the context is open.

    For observers below Python that native calls do not see, and to compare the two ways.

    Example:
        >>> import custom_autograd
        >>> with custom_autograd.through_dispatcher():
        ...     pass  # every call in here is one of the dispatcher
    """
    global _closed
    with _lock:
        _closed += 1
    changes.note()
    try:
        yield
    finally:
        with _lock:
            _closed -= 1
        changes.note()
