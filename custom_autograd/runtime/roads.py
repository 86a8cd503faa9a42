"""Roads: the calls of an op that need no dispatcher, each proven once and then recognised by a guard.

What the dispatcher does with a call follows from the dispatch keys of the tensors, the keys that modes and transforms
include or exclude, and the kernels at those keys. Where these are such that nothing but this op's own Autograd kernel
and its own backend kernel would act, running the two directly is the same. A guard recognises the same tensors under
the same modes; everything else takes the dispatcher's way:

- other dispatch keys than those in `_allowed`: subclasses, modes, transforms, tracing, autocast with a rule, lazy
  conjugation, sparse, quantised or nested tensors, ...
- what no key shows: `__torch_function__` modes, a forward-mode level, a profiler (asked in each call, see direct.py);
- values that the dispatcher would refuse or convert (ditto);
- a kernel that somebody else registered, and any registration since the road was proven (`changes`);
- ops that return views, and writes to what requires a gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_autograd.registration import library
from custom_autograd.registration.registry import Entry
from custom_autograd.runtime import validation
from custom_autograd.runtime.program import program_of
from custom_autograd.torch_private import guards, registrations
from custom_autograd.torch_private.registrations import changes

CLASSES = (Tensor, torch.nn.Parameter)
LONGEST = 8  # guards of one pattern; each costs 0.1 us to ask in vain
WIDEST = 64  # patterns of one op: which optionals are there, how long its lists are
NO_PATTERN = ()

_closed = 0
_lock = threading.Lock()


class Road(NamedTuple):
    """One kind of call that needs no dispatcher.

    Attributes:
        check: whether tensors are of that kind, now.
        function: the kernel.
        apply: what records the call, where a tensor of that kind requires a gradient.
        is_checked: whether the results of the kernel are to be looked at.
    """

    check: Callable[..., bool]
    function: Callable[..., Any]  # Any: as the schema says, here and below
    apply: Callable[..., Any] | None
    is_checked: bool


class Roads:
    """The roads of one op that are known so far.

    Attributes:
        known: the roads by pattern; replaced, never emptied, when something is registered.
        epoch: `changes.count` when they were proven.
        modules, libraries: how many of them were loaded then.
    """

    __slots__ = ("_entry", "_foreign", "epoch", "known", "libraries", "modules")

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._foreign: frozenset[str] = frozenset()
        self.known: dict[Hashable, tuple[Road, ...]] = {NO_PATTERN: ()}
        self.epoch = self.modules = self.libraries = -1

    def learn(self, pattern: Hashable, tensors: Sequence[Tensor], fixed: Sequence[Tensor]) -> None:
        """Proves a road for tensors such as these, if there is one; the next call takes it.

        Args:
            pattern: which optional tensors there are, and how long lists are.
            tensors: the differentiable inputs.
            fixed: the other tensors.
        """
        self._renew()
        known = self.known
        if _closed or validation.is_overridden() or (pattern not in known and len(known) >= WIDEST):
            return
        road = None if any(tensor.requires_grad for tensor in fixed) else self._prove([*tensors, *fixed])
        if road is not None and road.check(*tensors, *fixed):
            known[pattern] = (road, *known.get(pattern, ()))[:LONGEST]

    def _renew(self) -> None:
        """Forgets all roads if anything was registered or loaded since they were proven."""
        epoch, modules, libraries = changes.count, len(registrations.modules), len(registrations.loaded_libraries)
        if (epoch, modules, libraries) == (self.epoch, self.modules, self.libraries):
            return
        with _lock:
            self._foreign = registrations.foreign_keys(str(self._entry.home), library.FILE)
            self.known = {NO_PATTERN: ()}
            self.epoch, self.modules, self.libraries = epoch, modules, libraries

    def _prove(self, tensors: Sequence[Tensor]) -> Road | None:
        if guards.torch_dispatch_modes() or not tensors or not all(type(tensor) in CLASSES for tensor in tensors):
            return None
        device = tensors[0].device
        backend = guards.backend_of(tensors[0])
        allowed, foreign = _allowed(self._entry, backend), self._foreign
        for tensor in tensors:
            keys = guards.keys_in_effect(tensor)
            if tensor.device != device or not keys <= allowed or foreign & (keys | _ALIASES):
                return None
        return self._road(tensors, f"Autograd{backend}")

    def _road(self, tensors: Sequence[Tensor], autograd_key: str) -> Road | None:
        entry, device_type = self._entry, tensors[0].device.type
        if device_type not in entry.kernels and None not in entry.kernels:
            return None
        program = program_of(entry)
        function = program.choose(device_type)
        keys = [guards.keys_in_effect(tensor) for tensor in tensors]
        is_recorded = any(tensor.requires_grad for tensor in tensors) and any(autograd_key in its for its in keys)
        if program.is_writing and (is_recorded or not all("ADInplaceOrView" in its for its in keys)):
            return None
        apply = program.recorder(function) if is_recorded and program.is_recording else None
        return Road(guards.guard_of(tensors), function, apply, program.is_checked)


_ALIASES = frozenset({"Autograd", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "BackendSelect"})


def _allowed(entry: Entry, backend: str) -> frozenset[str]:
    """The keys at which nothing but the op's own two kernels acts."""
    if backend == "Meta":
        return frozenset()
    keys = {backend, f"Autograd{backend}", "ADInplaceOrView", "BackendSelect"}
    if not any(slot.startswith("autocast ") for slot in entry.rules):
        keys.add(f"Autocast{backend}")
    return frozenset(keys)


@contextmanager
def through_dispatcher() -> Iterator[None]:
    """Every call, in every thread, takes the dispatcher's way while the context is open: to compare the two."""
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
