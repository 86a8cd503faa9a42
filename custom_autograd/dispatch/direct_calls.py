"""Direct calls: the calls of an op that need no dispatcher, each proven once and then recognised by a guard.

What the dispatcher does with a call follows from the dispatch keys of the tensors, the keys that modes and transforms
include or exclude, and the kernels at those keys. Where these are such that nothing but this op's own Autograd kernel
and its own backend kernel would act, running the two directly is the same. A guard recognises the same tensors under
the same modes; everything else takes the dispatcher's way:

- other dispatch keys than those that proofs.py allows: subclasses, modes, transforms, tracing, autocast with a rule,
  lazy conjugation, sparse, quantised or nested tensors, ...
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
from typing import Any, Protocol

import torch
from torch import Tensor

from custom_autograd.dispatch.direct_source import NO_DIRECT_CALL, DirectCall
from custom_autograd.dispatch.generated import GeneratedOp, generated_code_of
from custom_autograd.dispatch.proofs import Proof, Prover
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import dispatch, guards, transforms, versions
from custom_autograd.torch_private.registered_kernels import changes
from custom_autograd.values import validation

CLASSES = (Tensor, torch.nn.Parameter)
LONGEST = 8  # guards of one pattern; each costs 0.1 us if it does not match
WIDEST = 64  # patterns of one op: which optionals are there, how long its lists are

_closed = int(versions.warn_if_untested())
_lock = threading.RLock()  # a finalizer may call an op while it is held


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
        "__weakref__", "_known", "_prover", "_record", "first", "last", "native", "other", "second",
    )  # fmt: skip

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._prover = Prover(record)
        self._known: dict[Hashable, tuple[DirectCall, ...]] = {}
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
        if not _can_be_guarded(given) or not self._may_be_direct(given):
            return NO_DIRECT_CALL
        given, pattern = _each_once(given, pattern)
        epoch, known = changes.count, self._known.get(pattern, ())
        for direct_call in known:
            if direct_call[0](*given):
                self._remember(pattern, direct_call, known, epoch)
                return direct_call
        return self._find_new(pattern, given, fixed) or NO_DIRECT_CALL

    def prove(
        self,
        tensors: Sequence[Tensor],
        device_type: str,
        seen: frozenset[str],
        shared: frozenset[str],
        *,
        is_tracked: bool,
    ) -> Proof | None:
        """Return what native code runs for a kind of call, or None; arguments as in `Prover.prove`.

        Native code recognises the kind by itself. It records nodes by itself, too, so what does that in Python is made
        only if it is called.
        """
        if not self._may_be_direct(tensors):
            return None
        found = self._prover.prove(device_type, seen, shared, is_tracked, GeneratedOp.record_later)
        if found is not None:
            changes.tell_once(self.forget)
        return found

    def _may_be_direct(self, tensors: Sequence[Tensor]) -> bool:
        if _closed or validation.is_overridden() or dispatch.are_lazy_bits_ignored():
            return False
        return self._prover.may_be_direct(tensors)

    def _find_new(self, pattern: Hashable, given: Sequence[Tensor], fixed: Sequence[Tensor]) -> DirectCall | None:
        """Return a new direct call, which is remembered once its first call has passed every check."""
        epoch, known = changes.count, self._known.get(pattern, ())
        found = None if any(tensor.requires_grad for tensor in fixed) else self._prove(given)
        if found is None or not found[0](*given):
            return None

        def remember() -> None:
            self._remember(pattern, found, (*known[1 - LONGEST :], found), epoch)
            for listener in when_proven:
                listener(self._record)

        return self._on_trial(found, remember)

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

    def _prove(self, tensors: Sequence[Tensor]) -> DirectCall | None:
        device = tensors[0].device
        if any(tensor.device != device for tensor in tensors):
            return None
        keys = list(map(guards.keys_in_effect, tensors))
        seen, shared = frozenset().union(*keys), keys[0].intersection(*keys)
        is_tracked = any(tensor.requires_grad for tensor in tensors)
        proof = self._prover.prove(device.type, seen, shared, is_tracked, GeneratedOp.record_now)
        if proof is None:
            return None
        is_blind = not is_tracked and self._prover.is_blind(proof.function)
        return guards.guard_of(tensors), proof.function, proof.record, proof.is_checked, is_blind


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
