"""The kernels of one op: in which order they are tried, and which one serves a call."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from custom_autograd.core.device_types import name_of
from custom_autograd.core.errors import KernelError, KernelUnavailable, KernelWarning, RegistrationError
from custom_autograd.core.locations import stacklevel_of_caller
from custom_autograd.core.messages import first_line, quote, suggest
from custom_autograd.core.signatures import is_other_closure, is_redefinition
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel import Kernel, KernelChoice, declared_kernel
from custom_autograd.schema.names import Name
from custom_autograd.torch_private.definitions import changes
from custom_autograd.torch_private.thread_values import HandedOn

Function = Callable[..., Any]  # Any: takes and returns what the schema declares


def _is_again(old: Kernel, new: Kernel) -> bool:
    """Return True if the author of a kernel registers it again."""
    return is_redefinition(old.given, new.given) and not is_other_closure(old.given, new.given)


class KernelTable(Mapping["str | None", Kernel]):
    """The kernels of one op: by device type, the one that is tried first; those for any device stand under None.

    What is held is never changed in place: readers in other threads see the old kernels or the new ones.

    Attributes:
        around: (function, device type) -> what is called in place of the function that serves a device type.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._kernels: dict[str | None, tuple[Kernel, ...]] = {}
        self._switches: tuple[tuple[object, str, bool], ...] = ()
        self._chosen: dict[str | None, Function] = {}
        self._available: dict[str | None, Sequence[Kernel]] = {}
        self._choices: dict[str | None, KernelChoice] = {}
        self._trusted: frozenset[Kernel] = frozenset()
        self._unavailable: dict[Kernel, str] = {}
        self._is_insisted_on = False
        self.around: Callable[[Function, str | None], Function] = lambda function, _: function

    def __getitem__(self, device_type: str | None) -> Kernel:
        return self._kernels[device_type][0]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def serves(self, device_type: str) -> bool:
        """Return True if a kernel serves a device type: one of its own, or the default one."""
        return device_type in self._kernels or None in self._kernels

    def all(self) -> Iterator[Kernel]:
        """Yield every kernel, device type by device type, in the order in which they are tried."""
        for kernels in self._kernels.values():
            yield from kernels

    @property
    def is_inlined(self) -> bool:
        """Return True if compiled graphs hold what a kernel does in place of the op."""
        return any(kernel.is_inlined for kernel in self.all())

    def listed(self) -> dict[str, str]:
        """Return their locations, by device type; with their names if a device type has several."""
        return {
            device or "default": its[0].location
            if len(its) == 1
            else "; ".join(f"{kernel.name} ({kernel.details})" for kernel in its)
            for device, its in self._kernels.items()
        }

    @property
    def disabled(self) -> frozenset[str]:
        """Return the device types whose kernels are switched off now."""
        last = {device: is_enabled for _, device, is_enabled in self._switches}
        return frozenset(device for device, is_enabled in last.items() if not is_enabled)

    @property
    def passed_over(self) -> Mapping[Kernel, str]:
        """Return the kernels that cannot run in this process, as far as that was found out, with the reason."""
        return self._unavailable

    def add(self, *added: Kernel, replace: bool) -> None:
        """Add kernels: all of them, or none."""
        kernels = dict(self._kernels)
        for kernel in added:
            others = kernels.get(kernel.device_type, ())
            kernels[kernel.device_type] = self._ordered(kernel, others, replace) if others else (kernel,)
        if None in kernels:  # those for any device are tried last
            kernels[None] = kernels.pop(None)
        self._kernels = kernels
        self._trusted = self._trusted and self._trusted & frozenset(self.all())
        self._changed()

    def _ordered(self, kernel: Kernel, others: tuple[Kernel, ...], replace: bool) -> tuple[Kernel, ...]:
        """Return the kernels of a device type with a new one, in the order in which they are tried."""
        taken = next((other for other in others if other.name == kernel.name), None)
        if taken is not None and not replace and not _is_again(taken, kernel):
            named = "" if kernel.name == (kernel.device_type or "default") else f" named {kernel.name!r}"
            raise self._declaration.error(
                RegistrationError,
                f"device type {kernel.device_type!r} already has a kernel{named}",
                found=f"one at {taken.location}, another at {kernel.location}",
                do="pass replace=True to register_kernel if that is meant, or name= to have both",
            )
        its = [kernel if other is taken else other for other in others] if taken else [*others, kernel]
        return tuple(sorted(its, key=lambda one: (-one.priority, one.when is None)))

    def choose(self, device_type: str | None) -> Function:
        """Return the function that serves a device type now."""
        chosen = self._chosen
        function = chosen.get(device_type)
        if function is None:
            function = chosen[device_type] = self.around(self._choose(device_type), device_type)
        return function

    def _choose(self, device_type: str | None) -> Function:
        available = self._available_for(device_type) or self._candidates(device_type)
        if not available:
            raise self.missing(device_type)
        first, is_certain = available[0], len(available) == 1 or available[0] in self._trusted
        if first.when is None and is_certain and not self._is_insisted_on:
            return first.function
        return self._choices.setdefault(device_type, KernelChoice(self, device_type))

    def _candidates(self, device_type: str | None) -> Sequence[Kernel]:
        """Return what serves a device type, in order, but for what a thread forces."""
        found = self._all_for(device_type)
        wanted = _wanted_by_environment(self._declaration.name)
        return self.named(wanted, found, device_type) if wanted else found

    def _all_for(self, device_type: str | None) -> Sequence[Kernel]:
        its = self._kernels.get(device_type, ())
        if self._switches and device_type in self.disabled:
            its = () if None in self._kernels or not its else (declared_kernel(self._declaration),)
        return its if device_type is None else its + self._kernels.get(None, ())

    def candidates(self, device_type: str | None) -> Sequence[Kernel]:
        """Return what is tried for a call in this thread, in order."""
        # What a thread insists on comes before the environment.
        wanted = self.wanted()
        if wanted is not None:
            return self.named(wanted, self._all_for(device_type), device_type)
        return self._available_for(device_type)

    def _available_for(self, device_type: str | None) -> Sequence[Kernel]:
        """Return what can run in this process, in order: the same for every call until something changes."""
        available = self._available
        found = available.get(device_type)
        if found is None:
            found = self._candidates(device_type)
            if self._unavailable:
                found = [kernel for kernel in found if kernel not in self._unavailable]
            available[device_type] = found
        return found

    def wanted(self) -> str | None:
        """Return the name of the kernel that has to run in this thread, or none."""
        table = _forced.get() if self._is_insisted_on else None
        return None if table is None else table.get(id(self))

    def named(self, name: str, candidates: Sequence[Kernel], device_type: str | None) -> Sequence[Kernel]:
        """Return those of that name."""
        found = [kernel for kernel in candidates if kernel.name == name]
        if found:
            return found
        elsewhere = [other for other in self if other is not None and any(k.name == name for k in self._kernels[other])]
        register = (
            f"{name!r} is a kernel for device type {quote(elsewhere)}; choose one of these, or register it here, too"
        )
        names, where = [kernel.name for kernel in candidates], f" for device type {device_type!r}"
        raise self._declaration.error(
            KernelError,
            f"there is no kernel {name!r}{'' if device_type is None else where}",
            expected=quote(dict.fromkeys(names)),
            found=repr(name),
            do=register if elsewhere else suggest(name, names) or "choose one of these, or register it",
        )

    @contextmanager
    def insist(self, name: str) -> Iterator[None]:
        """Run only kernels of that name in this thread while the context is open, and in backward passes it starts."""
        self.named(name, tuple(self.all()), None)
        if not self._is_insisted_on:  # and from now on every call looks for forced kernels
            self._is_insisted_on = True
            self._changed()
        with _forced.set({**(_forced.get() or {}), id(self): name}):
            yield

    def trust(self, kernel: Kernel) -> None:
        """Note that a kernel has run: where it is the first, and has no condition, it is called without asking."""
        if kernel.when is None and kernel not in self._trusted:
            self._trusted |= {kernel}
            self._changed()

    def pass_over(self, kernel: Kernel, error: KernelUnavailable) -> None:
        """Note that a kernel cannot run in this process, and warn of it."""
        if error.is_late and self._declaration.schema.mutated_arguments:
            raise error
        self._unavailable = {**self._unavailable, kernel: first_line(error)}
        self._changed()
        text = f"{error}\n  meanwhile  the {kernel.label} of {self._declaration.name} is passed over"
        warnings.warn(text, KernelWarning, stacklevel=stacklevel_of_caller())

    def describe(self, function: Function) -> str:
        """Return what a chosen function is, for a message: "cpu kernel, k.py:12,"."""
        function = kernel_behind(function)
        if isinstance(function, KernelChoice) and function.last is not None:
            function = function.last.function
        for kernel in self.all():
            if kernel.function is function:
                return f"{kernel.label}, {kernel.location},"
        return f"kernel, {self._declaration.location},"

    def _changed(self) -> None:
        self._chosen, self._available = {}, {}
        changes.note()

    def missing(self, device_type: str | None, layout: torch.layout = torch.strided) -> KernelError:
        """Return the error for a device type or a layout without a kernel, with the kernels that there are."""
        error = self._declaration.origin().error
        if layout is not torch.strided and device_type in self._kernels:
            return error(
                KernelError,
                f"there is no kernel for layout {layout}: the kernel of a device type takes strided tensors",
                expected="tensors of layout torch.strided",
                found=str(layout),
                do="call .to_dense(), or register_kernel(None) a kernel that takes such tensors",
            )
        return error(
            KernelError,
            f"there is no kernel for device type {device_type!r}",
            expected=f"tensors on {quote(one for one in self._kernels if one is not None)}",
            found=repr(device_type),
            do=f"register one with register_kernel({device_type!r})",
        )

    def none_accepts(self, device_type: str | None, refusals: Mapping[Kernel, str]) -> KernelError:
        """Return the error that lists every kernel that was tried, and why it did not run."""
        passed = {one: why for one, why in self._unavailable.items() if one in self._candidates(device_type)}
        reasons = {kernel: why or (kernel.when.text if kernel.when else "") for kernel, why in refusals.items()}
        listed = [f"{kernel.label} ({kernel.location}): {why}" for kernel, why in {**passed, **reasons}.items()]
        wanted = self.wanted() or _wanted_by_environment(self._declaration.name)
        if wanted is None:
            problem = f"no kernel for device type {device_type!r} accepts these arguments"
            do = "change the arguments, or register a kernel without when=, such as register_kernel(None)"
        else:
            who = f"use_kernel or {VARIABLE}"
            problem = f"the kernel {wanted!r}, which {who} insists on, does not accept these arguments"
            do = f"change the arguments, leave the block of use_kernel, or unset {VARIABLE}"
        found = ("\n" + " " * 13).join(listed)
        return self._declaration.error(KernelError, problem, found=found, do=do)

    def instead(self, function: Function, error: KernelUnavailable) -> Function:
        """Return what serves a call in place of a kernel that has run before, and is not available now."""
        function = kernel_behind(function)
        kernel = next((one for one in self.all() if one.function is function), None)
        if kernel is None or len(self._candidates(kernel.device_type)) == 1:
            raise error
        self.pass_over(kernel, error)
        return self.choose(kernel.device_type)

    @contextmanager
    def enabled(self, device_type: str, is_enabled: bool) -> Iterator[None]:
        """Switch the kernels of a device type on or off while the context is open; contexts nest."""
        self._declaration.check_bools(enabled=is_enabled)
        switch = (object(), name_of(device_type), is_enabled)
        self._switch((*self._switches, switch))
        try:
            yield
        finally:
            self._switch(tuple(other for other in self._switches if other is not switch))

    def _switch(self, switches: tuple[tuple[object, str, bool], ...]) -> None:
        with changes.lock:
            self._switches = switches
            self._changed()


def kernel_behind(function: Function) -> Function:
    """Return the kernel behind what watches it, or looks at the sizes of its tensors."""
    inner: Function | None = getattr(function, "kernel_function", None)
    return function if inner is None else kernel_behind(inner)


# Which kernel is forced: `op.use_kernel("triton")`, or CUSTOM_AUTOGRAD_KERNELS=namespace::op=triton.
#
# It counts in a thread or an asyncio task, and in the backward passes that start there.


VARIABLE = "CUSTOM_AUTOGRAD_KERNELS"

Table = Mapping[int, str]
_forced: HandedOn[Table] = HandedOn(VARIABLE)


def _wanted_by_environment(op: Name) -> str | None:
    """Return the kernel that the environment forces on an op, or None."""
    if VARIABLE not in os.environ:  # `get` raises and catches a KeyError, which takes five times as long
        return None
    return _parse(os.environ[VARIABLE]).get(str(op))


@functools.cache
def _parse(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        op, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name or "::" not in op:
            raise KernelError(
                VARIABLE,
                "the environment variable cannot be read",
                expected="namespace::op=kernel, separated by commas",
                found=repr(part),
                do=f"correct it, or unset {VARIABLE}",
            )
        if found.setdefault(op, name) != name:
            problem = f"the environment variable names two kernels for {op}"
            raise KernelError(VARIABLE, problem, found=f"{found[op]!r} and {name!r}", do="leave one out")
    return found
