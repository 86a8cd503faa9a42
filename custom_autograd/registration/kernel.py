"""Kernel: one function that computes an op on one device type; when it may run, and the choice among several."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from custom_autograd.core.errors import KernelError, KernelUnavailable
from custom_autograd.core.messages import first_line, show
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration, kernel_of_op

if TYPE_CHECKING:
    from custom_autograd.registration.kernel_table import KernelTable


Function = Callable[..., Any]  # Any: takes and returns what the schema declares


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
        is_inlined: compiled graphs hold what it does in place of the op.
        layouts: the layout that `wrap` gives each argument that needs one, by name.
    """

    device_type: str | None
    function: Function
    location: str
    name: str
    priority: int
    when: Condition | None
    given: Function
    wrap: Callable[[Function], Function]
    is_inlined: bool = False
    layouts: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """Return device type and name: "cpu", "cuda 'triton'", "default"."""
        device = self.device_type or "default"
        return device if self.name == device else f"{device} {self.name!r}"

    @property
    def label(self) -> str:
        """Return what messages call it: "cpu kernel", "cuda kernel 'triton'", "default kernel"."""
        device, _, name = self.title.partition(" ")
        return f"{device} kernel {name}".rstrip()

    @property
    def details(self) -> str:
        """Return the location, the priority and the condition, which decide when it runs."""
        parts = [self.location]
        parts += [f"priority {self.priority}"] if self.priority else []
        parts += [f"when {self.when.location}"] if self.when else []
        return ", ".join(parts)


def declared_kernel(declaration: Declaration) -> Kernel:
    """Return the decorated function as a kernel for any device."""
    given, name = declaration.function, "default"
    function = flat_kernel(declaration, given)
    return Kernel(None, function, declaration.location, name, 0, None, given, lambda other: other)


def flat_kernel(declaration: Declaration, function: Function) -> Function:
    """Return a function that takes what the schema declares as the op's kernel."""
    schema = declaration.schema
    positional = [argument.name for argument in schema.arguments if not argument.is_keyword_only]
    return kernel_of_op(function, str(declaration.name), positional, [one.name for one in schema.mutated_arguments])


@dataclass(frozen=True, slots=True)
class Condition:
    """A function of the user's that says whether a kernel takes the arguments.

    Attributes:
        function: returns a bool, or raises KernelUnavailable with the reason (Any: what the schema declares, as below).
        names: the arguments that it is called with.
        location: file:line of it.
        bind: a kernel's call -> all arguments by name, as the op's author sees them.
        op: for messages.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    location: str
    bind: Callable[..., dict[str, Any]]
    op: str

    def refusal(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return None if the kernel takes these arguments, else the reason that was given, or nothing: see `text`."""
        values = self.bind(*args, **kwargs)
        try:
            answer = self.function(**{name: values[name] for name in self.names})
        except KernelUnavailable as error:
            return first_line(error)
        if isinstance(answer, torch.SymBool):
            answer = bool(answer)  # a graph is guarded by it
        if type(answer) is not bool:
            problem = "the function given as when= returns no bool"
            raise KernelError(self.op, problem, expected="a bool", found=show(answer), rule=self.location)
        return None if answer else ""

    @property
    def text(self) -> str:
        """Return a phrase for messages, when the function returned False: its name, docstring and location."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        words = (inspect.getdoc(self.function) or "").partition("\n")[0].rstrip(".")
        return f"when={name} ({words + ', ' if words else ''}{self.location}) returns False"


class KernelChoice:
    """Runs the first kernel that accepts the arguments; it is called as kernels are.

    Attributes:
        watch: makes a kernel one whose call is checked in full; None if nothing is checked.
    """

    def __init__(self, kernels: KernelTable, device_type: str | None) -> None:
        self._kernels = kernels
        self._device_type = device_type
        self._here = threading.local()
        self._seen: set[Kernel] = set()
        self.watch: Callable[[Function], Function] | None = None

    @property
    def last(self) -> Kernel | None:
        """Return the kernel that ran last in this thread, for messages."""
        return getattr(self._here, "kernel", None)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the schema declares
        """Return what that kernel returns."""
        refusals: dict[Kernel, str] = {}
        for kernel in self._kernels.candidates(self._device_type):
            reason = None if kernel.when is None else kernel.when.refusal(args, kwargs)
            if reason is not None:
                refusals[kernel] = reason
                continue
            self._here.kernel = kernel
            try:
                result = self._function_of(kernel)(*args, **kwargs)
            except KernelUnavailable as error:
                if self._kernels.wanted() is not None:
                    raise
                self._kernels.pass_over(kernel, error)
                continue
            self._seen.add(kernel)
            self._kernels.trust(kernel)
            return result
        raise self._kernels.none_accepts(self._device_type, refusals)

    def _function_of(self, kernel: Kernel) -> Function:
        """Return the kernel, checked in full at its first call: its direct call may have been proven with another."""
        if self.watch is None or kernel in self._seen:
            return kernel.function
        return self.watch(kernel.function)
