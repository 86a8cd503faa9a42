"""The kernels of one op: which there are, in which order they are tried, which one serves a call.

On each device type the kernels with the highest priority come first; of equal ones those with a condition, then those
that were registered first; last come the kernels for any device. Where the first has no condition, and has run once, it
is what is called, and choosing costs nothing. Elsewhere a `Choice` asks one after the other.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from custom_autograd.core.errors import KernelError, KernelUnavailable, KernelWarning
from custom_autograd.registration import forcing, kernel_errors
from custom_autograd.registration.conditions import Condition, first_line
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private.registrations import changes

Function = Callable[..., Any]  # Any: takes and returns what the schema says


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One function that computes the op on one device type.

    Attributes:
        device_type: such as "cpu"; None for every one.
        function: the function, as it is called.
        location: file:line of it.
        name: what `use_kernel` calls it; the device type, or "default", where none was given.
        priority: kernels with a higher one are tried first.
        when: its condition, if it has one.
        given: the function as its author wrote it.
        wrap: what makes `function` of `given`.
    """

    device_type: str | None
    function: Function
    location: str
    name: str
    priority: int
    when: Condition | None
    given: Function
    wrap: Callable[[Function], Function]

    @property
    def title(self) -> str:
        """Device type and name: "cpu", "cuda 'triton'", "default"."""
        device = self.device_type or "default"
        return device if self.name == device else f"{device} {self.name!r}"

    @property
    def label(self) -> str:
        """What messages call it: "cpu kernel", "cuda kernel 'triton'", "default kernel"."""
        device, _, name = self.title.partition(" ")
        return f"{device} kernel {name}".rstrip()

    @property
    def place(self) -> str:
        """Where it stands, and what its turn depends on."""
        parts = [self.location]
        parts += [f"priority {self.priority}"] if self.priority else []
        parts += [f"when {self.when.location}"] if self.when else []
        return ", ".join(parts)


def declared_kernel(declaration: Declaration) -> Kernel:
    """The decorated function as a kernel for any device."""
    function, name = declaration.function, "default"
    return Kernel(None, function, declaration.location, name, 0, None, function, lambda other: other)


class Kernels(Mapping["str | None", Kernel]):
    """The kernels of one op: by device type, the one that is tried first; those for any device stand under None.

    What is held is never changed in place: readers in other threads see the old kernels or the new ones.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._kernels: dict[str | None, tuple[Kernel, ...]] = {}
        self._disabled: dict[str, int] = {}
        self._chosen: dict[str | None, Function] = {}
        self._trusted: frozenset[Kernel] = frozenset()
        self._unavailable: dict[Kernel, str] = {}
        self._insisting = 0

    def __getitem__(self, device_type: str | None) -> Kernel:
        return self._kernels[device_type][0]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def all(self) -> Iterator[Kernel]:
        """Every kernel, device type by device type, in the order in which they are tried."""
        for kernels in self._kernels.values():
            yield from kernels

    def listed(self) -> dict[str, str]:
        """Where they stand, by device type; with their names where a device type has several."""
        return {
            device or "default": its[0].location
            if len(its) == 1
            else "; ".join(f"{kernel.name} ({kernel.place})" for kernel in its)
            for device, its in self._kernels.items()
        }

    def add(self, kernel: Kernel, *, replace: bool) -> None:
        """Adds a kernel.

        Raises:
            RegistrationError: the device type has one of that name already, and `replace` is not meant.
        """
        its = self._kernels.get(kernel.device_type, ())
        taken = next((other for other in its if other.name == kernel.name), None)
        if taken is not None and not replace:
            raise kernel_errors.taken(
                self._declaration, kernel.device_type, kernel.name, kernel.location, taken.location
            )
        its = tuple(kernel if other is taken else other for other in its) if taken else (*its, kernel)
        ordered = tuple(sorted(its, key=lambda one: (-one.priority, one.when is None)))
        self._kernels = {**self._kernels, kernel.device_type: ordered}
        self._changed()

    def choose(self, device_type: str | None) -> Function:
        """The function that serves a device type now.

        Raises:
            KernelError: the device type has no kernel and there is no default one.
        """
        chosen = self._chosen
        function = chosen.get(device_type)
        if function is None:
            function = chosen[device_type] = self._choose(device_type)
        return function

    def _choose(self, device_type: str | None) -> Function:
        candidates = self._candidates(device_type)
        if not candidates:
            raise self.missing(device_type)
        available = [kernel for kernel in candidates if kernel not in self._unavailable] or candidates
        first, is_certain = available[0], len(available) == 1 or available[0] in self._trusted
        if first.when is None and is_certain and not self._insisting:
            return first.function
        return Choice(self, device_type)

    def _candidates(self, device_type: str | None) -> Sequence[Kernel]:
        """What serves a device type, in order, whoever insists on what in which thread."""
        its = self._kernels.get(device_type, ())
        if self._disabled and device_type in self._disabled:
            its = () if None in self._kernels or not its else (declared_kernel(self._declaration),)
        everywhere = self._kernels.get(None, ()) if device_type is not None else ()
        wanted = forcing.wanted_by_environment(str(self._declaration.name))
        return self.named(wanted, (*its, *everywhere), device_type) if wanted else (*its, *everywhere)

    def candidates(self, device_type: str | None) -> Sequence[Kernel]:
        """What is tried for a call in this thread, in order."""
        found = self._candidates(device_type)
        wanted = self.wanted()
        if wanted is not None:
            return self.named(wanted, found, device_type)
        return [kernel for kernel in found if kernel not in self._unavailable]

    def wanted(self) -> str | None:
        """The name of the kernel that has to run in this thread, or none."""
        return forcing.wanted_by_thread(id(self)) if self._insisting else None

    def named(self, name: str, candidates: Sequence[Kernel], device_type: str | None) -> Sequence[Kernel]:
        """Those of that name.

        Raises:
            KernelError: there is none.
        """
        found = [kernel for kernel in candidates if kernel.name == name]
        if found:
            return found
        raise kernel_errors.unknown(self._declaration, name, device_type, [kernel.name for kernel in candidates])

    @contextmanager
    def insist(self, name: str) -> Iterator[None]:
        """Only kernels of that name run in this thread while the context is open, and in backward passes it starts.

        Raises:
            KernelError: no device type has one.
        """
        self.named(name, tuple(self.all()), None)
        self._count_insisting(1)
        try:
            with forcing.insisting(id(self), name):
                yield
        finally:
            self._count_insisting(-1)

    def _count_insisting(self, by: int) -> None:
        with changes.lock:
            self._insisting += by
            self._changed()

    def trust(self, kernel: Kernel) -> None:
        """Notes that a kernel has run: where it is the first, and has no condition, it is called without asking."""
        if kernel.when is None and kernel not in self._trusted:
            self._trusted |= {kernel}
            self._changed()

    def pass_over(self, kernel: Kernel, error: KernelUnavailable) -> None:
        """Notes that a kernel cannot run in this process, and warns of it."""
        self._unavailable = {**self._unavailable, kernel: first_line(error)}
        self._changed()
        text = f"{error}\n  meanwhile  the {kernel.label} of {self._declaration.name} is passed over"
        warnings.warn(text, KernelWarning, stacklevel=4)

    def describe(self, function: Function) -> str:
        """What a chosen function is, for a message: "cpu kernel, k.py:12,"."""
        if isinstance(function, Choice) and function.last is not None:
            function = function.last.function
        for kernel in self.all():
            if kernel.function is function:
                return f"{kernel.label}, {kernel.location},"
        return f"kernel, {self._declaration.location},"

    def _changed(self) -> None:
        self._chosen = {}
        changes.note()

    def missing(self, device_type: str | None, layout: torch.layout = torch.strided) -> KernelError:
        """The error that says that no kernel serves a device type or a layout, and which kernels there are."""
        if layout is not torch.strided and device_type in self._kernels:
            return kernel_errors.wrong_layout(self._declaration, layout)
        return kernel_errors.missing(self._declaration, device_type, [one for one in self._kernels if one is not None])

    def none_accepts(self, device_type: str | None, refusals: Mapping[Kernel, str]) -> KernelError:
        """The error that lists every kernel that was asked, and why it did not run."""
        passed = {one: why for one, why in self._unavailable.items() if one in self._candidates(device_type)}
        listed = [f"{kernel.label} ({kernel.location}): {why}" for kernel, why in {**passed, **refusals}.items()]
        return kernel_errors.none_accepts(self._declaration, device_type, listed)

    @contextmanager
    def enabled(self, device_type: str, is_enabled: bool) -> Iterator[None]:
        """Switches the kernels of a device type on or off while the context is open; contexts nest."""
        before = self._disabled
        rest = {device: 1 for device in before if device != device_type}
        self._disabled = rest if is_enabled else {**rest, device_type: 1}
        self._changed()
        try:
            yield
        finally:
            self._disabled = before
            self._changed()


class Choice:
    """Runs the first kernel that accepts the arguments; it is called as kernels are."""

    def __init__(self, kernels: Kernels, device_type: str | None) -> None:
        self._kernels = kernels
        self._device_type = device_type
        self._here = threading.local()

    @property
    def last(self) -> Kernel | None:
        """The kernel that ran last in this thread, for messages."""
        return getattr(self._here, "kernel", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # Any: what the schema says
        """What that kernel returns.

        Raises:
            KernelError: none accepts them; the message says why.
        """
        refusals: dict[Kernel, str] = {}
        for kernel in self._kernels.candidates(self._device_type):
            reason = None if kernel.when is None else kernel.when.refusal(args, kwargs)
            if reason is not None:
                refusals[kernel] = reason
                continue
            self._here.kernel = kernel
            try:
                result = kernel.function(*args, **kwargs)
            except KernelUnavailable as error:
                if self._kernels.wanted() is not None:
                    raise
                self._kernels.pass_over(kernel, error)
                continue
            self._kernels.trust(kernel)
            return result
        raise self._kernels.none_accepts(self._device_type, refusals)
