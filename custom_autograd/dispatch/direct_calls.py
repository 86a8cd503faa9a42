"""Direct calls: the calls of an op that need no dispatcher, each proven once and then recognised by a guard.

What the dispatcher does with a call follows from the dispatch keys of the tensors, the keys that modes and transforms
include or exclude, and the kernels at those keys. Where these are such that nothing but this op's own Autograd kernel
and its own backend kernel would act, running the two directly is the same. A guard recognises the same tensors under
the same modes; everything else takes the dispatcher's way:

- other dispatch keys than those in `_allowed`: subclasses, modes, transforms, tracing, autocast with a rule, lazy
  conjugation, sparse, quantised or nested tensors, ...
- what no key shows: `__torch_function__` modes, a forward-mode level, a profiler (asked in each call:
  direct_source.py);
- values that the dispatcher would refuse or convert (ditto);
- a kernel that other code registered, and any registration since the direct call was proven (`changes`);
- a torch that is newer than all that were tested (versions.py);
- ops that return views, and writes to what requires a gradient.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from custom_autograd.calls.grad_mode import is_blind_to_grad_mode
from custom_autograd.dispatch.direct_source import NO_DIRECT_CALL, DirectCall
from custom_autograd.dispatch.generated import GeneratedOp, generated_code_of
from custom_autograd.registration import dispatcher_library as library
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.size_checks import find_size_check
from custom_autograd.torch_private import guards, transforms, versions
from custom_autograd.torch_private import registered_kernels as registrations
from custom_autograd.torch_private.registered_kernels import changes
from custom_autograd.values import validation

CLASSES = (Tensor, torch.nn.Parameter)
LONGEST = 8  # guards of one pattern; each costs 0.1 us if it does not match
WIDEST = 64  # patterns of one op: which optionals are there, how long its lists are

_closed = int(versions.warn_if_untested())
_lock = threading.RLock()  # a finalizer may call an op while it is held


Recorder: TypeAlias = Callable[[GeneratedOp, Callable[..., Any]], Callable[..., Any]]
"""Makes, of a kernel, what runs it and records a node: a method of GeneratedOp (Any: as the schema says)."""


class NativeCalls(Protocol):
    """The direct calls of an op as native code recognises them; see native/native_calls.py."""

    def forget(self) -> None:
        """Forget them all."""

    def expect(self) -> None:
        """Note that a new one has been proven."""

    def take_over(self) -> None:
        """Take over the calls of the op's handle, once its class has its `__call__`."""


when_proven: list[Callable[[OpRecord], None]] = []
"""Called with an op each time that a direct call of it was proven."""


class DirectCallTable:
    """The direct calls of one op that are known so far. All are forgotten at the next change of what is registered.

    Attributes:
        first: by pattern, the direct call that was found last.
        second: by pattern, the direct call that was found before that.
        last: the first for an op with one pattern.
        other: the second for an op with one pattern.
        native: the same calls in native code, or None.
    """

    __slots__ = (
        "__weakref__", "_deciding", "_foreign", "_known", "_record", "first", "last", "native", "other", "second",
    )  # fmt: skip

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._deciding = [one for one in record.capabilities if type(one).is_direct is not Capability.is_direct]
        self._known: dict[Hashable, tuple[DirectCall, ...]] = {}
        self._foreign: tuple[int, frozenset[str]] = (-1, frozenset())
        self.first: dict[Hashable, DirectCall] = {}
        self.second: dict[Hashable, DirectCall] = {}
        self.last = self.other = NO_DIRECT_CALL
        self.native: NativeCalls | None = None

    def find(self, pattern: Hashable, tensors: Sequence[Tensor], fixed: Sequence[Tensor]) -> DirectCall:
        """Return the direct call for tensors that the first one is not for: a known one, a new one, or NO_DIRECT_CALL.

        Args:
            pattern: which optional tensors there are, and how long lists are; None if there are neither.
            tensors: the differentiable inputs.
            fixed: the other tensors.
        """
        given = (*tensors, *fixed)
        if not self._may_be_direct(given):
            return NO_DIRECT_CALL
        given, pattern = _each_once(given, pattern)
        epoch, known = changes.count, self._known.get(pattern, ())
        for direct_call in known:
            if direct_call[0](*given):
                self._remember(pattern, direct_call, known, epoch)
                return direct_call
        return self._find_new(pattern, given, fixed, GeneratedOp.record_now) or NO_DIRECT_CALL

    def prove(self, pattern: Hashable, tensors: Sequence[Tensor], fixed: Sequence[Tensor]) -> DirectCall | None:
        """Return a new direct call on trial for native code, or None; arguments as in `find`.

        Native code records nodes by itself, so what does that in Python is made only if it is called.
        """
        given, pattern = _each_once((*tensors, *fixed), pattern)
        return self._find_new(pattern, given, fixed, GeneratedOp.record_later) if self._may_be_direct(given) else None

    def _may_be_direct(self, given: Sequence[Tensor]) -> bool:
        is_open = not _closed and not validation.is_overridden() and _can_be_guarded(given)
        return is_open and all(capability.is_direct(self._record, given) for capability in self._deciding)

    def _find_new(
        self, pattern: Hashable, given: Sequence[Tensor], fixed: Sequence[Tensor], recorder: Recorder
    ) -> DirectCall | None:
        """Return a new direct call, which is remembered once its first call has passed every check."""
        epoch, known = changes.count, self._known.get(pattern, ())
        found = None if any(tensor.requires_grad for tensor in fixed) else self._prove(given, recorder)
        if found is None or not found[0](*given):
            return None

        def remember() -> None:
            self._remember(pattern, found, (*known[1 - LONGEST :], found), epoch)
            for listener in when_proven:
                listener(self._record)

        return self._on_trial(found, remember)

    def find_known(self, pattern: Hashable, tensors: Sequence[Tensor]) -> DirectCall | None:
        """Return the direct call for tensors if it has been proven already, or None; arguments as in `find`."""
        if _closed or validation.is_overridden() or not _can_be_guarded(tensors):
            return None
        given, pattern = _each_once(tuple(tensors), pattern)
        return next((one for one in self._known.get(pattern, ()) if one[0](*given)), None)

    def forget(self) -> None:
        """Forget all direct calls: something was registered since they were proven."""
        self._known, self.first, self.second = {}, {}, {}
        self.last = self.other = NO_DIRECT_CALL
        if self.native is not None:
            self.native.forget()

    def take_over(self) -> None:
        """Note that the op's handle has its `__call__`."""
        if self.native is not None:
            self.native.take_over()

    def _remember(self, pattern: Hashable, direct_call: DirectCall, known: tuple[DirectCall, ...], epoch: int) -> None:
        """Note a direct call as the first, unless something was registered since it was proven."""
        with changes.lock:
            if epoch != changes.count:
                return
            changes.tell_once(self.forget)
            if pattern is None:
                self.other, self.last = self.last, direct_call
            if pattern in self._known or len(self._known) < WIDEST:
                self._known[pattern] = known
                self.second[pattern] = self.first.get(pattern, NO_DIRECT_CALL)
                self.first[pattern] = direct_call

    def _on_trial(self, direct_call: DirectCall, remember: Callable[[], None]) -> DirectCall:
        """Return a direct call whose first call is checked in full, and which is remembered once that has passed."""
        check, function, recorder, is_checked, _ = direct_call
        generated = generated_code_of(self._record)
        assert function is not None  # it was found
        watched = generated.watch(function) if is_checked else function

        def run(*args: Any, **kwargs: Any) -> Any:
            result = watched(*args, **kwargs)
            remember()
            return result

        run.kernel_function = watched  # type: ignore[attr-defined]  # see kernel_behind

        def record_once(*args: Any) -> Any:
            result = generated.record_now(watched)(*args)
            remember()
            return result

        return check, run, None if recorder is None else record_once, is_checked, False

    def _prove(self, tensors: Sequence[Tensor], recorder: Recorder) -> DirectCall | None:
        device, backend = tensors[0].device, guards.backend_of(tensors[0])
        allowed = _allowed(backend)
        foreign = self._find_foreign()
        keys = [guards.keys_in_effect(tensor) for tensor in tensors]
        for tensor, its in zip(tensors, keys, strict=True):
            if tensor.device != device or not its <= allowed or foreign & (its | _ALIASES):
                return None
        return self._direct_call(tensors, keys, f"Autograd{backend}", recorder)

    def _find_foreign(self) -> frozenset[str]:
        """Return the dispatch keys at which a kernel of other code is registered now."""
        count = changes.count
        if self._foreign[0] != count:
            self._foreign = count, registrations.foreign_keys(str(self._record.dispatcher_name), library.FILE)
        return self._foreign[1]

    def _is_blind(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> bool:
        """Return True if a kernel, called with tensors of this kind, needs no grad mode to be switched off for it."""
        is_converted = any(a.from_dispatcher is not None for a in self._record.declaration.schema.arguments)
        is_tracked = any(tensor.requires_grad for tensor in tensors)
        checked = find_size_check(function)
        return not is_converted and not is_tracked and is_blind_to_grad_mode(checked.function if checked else function)

    def _direct_call(
        self, tensors: Sequence[Tensor], keys: Sequence[frozenset[str]], autograd_key: str, recorder: Recorder
    ) -> DirectCall | None:
        record, device_type = self._record, tensors[0].device.type
        if device_type not in record.kernels and None not in record.kernels:
            return None
        generated = generated_code_of(record)
        function = generated.choose(device_type)
        is_recorded = any(tensor.requires_grad for tensor in tensors) and any(autograd_key in its for its in keys)
        if is_recorded and generated.recording_facts.keeps_dispatcher:
            return None
        if generated.is_writing and (is_recorded or not all("ADInplaceOrView" in its for its in keys)):
            return None
        apply = recorder(generated, function) if is_recorded and generated.plan.is_differentiable else None
        is_blind = not generated.is_writing and self._is_blind(function, tensors)
        return guards.guard_of(tensors), function, apply, generated.is_checked, is_blind


def _each_once(tensors: tuple[Tensor, ...], pattern: Hashable) -> tuple[tuple[Tensor, ...], Hashable]:
    """Return each tensor once, and the pattern with the position of each: guards reject a tensor given twice."""
    positions = _positions(tensors)
    if positions is None:
        return tensors, pattern
    return tuple({id(tensor): tensor for tensor in tensors}.values()), (pattern, positions)


def _positions(tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Return which tensor is at each position, if one is at several; else None."""
    seen: dict[int, int] = {}
    positions = tuple([seen.setdefault(id(tensor), len(seen)) for tensor in tensors])
    return None if len(seen) == len(tensors) else positions


def _can_be_guarded(tensors: Sequence[Tensor]) -> bool:
    """Return True if a guard may look at tensors: some end the process, and some modes are not seen; see guards.py."""
    if not tensors or guards.torch_dispatch_modes() or transforms.is_transforming():
        return False
    return all(type(tensor) in CLASSES and not guards.is_without_sizes(tensor) for tensor in tensors)


_ALIASES = frozenset({"Autograd", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "BackendSelect"})


def _allowed(backend: str) -> frozenset[str]:
    """Return the keys at which nothing but the op's own two kernels acts."""
    if backend == "Meta":
        return frozenset()
    return frozenset({backend, f"Autograd{backend}", "ADInplaceOrView", "BackendSelect", f"Autocast{backend}"})


@contextmanager
def through_dispatcher() -> Iterator[None]:
    """Send every call of every op, in all threads, through the dispatcher while the context is open.

    For observers below Python, which a direct call does not ask unless it is native: `ExecutionTraceObserver` of
    `torch.profiler`, a profiler that another program starts in this one; or to compare the two ways.

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


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
