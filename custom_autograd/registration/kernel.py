"""Kernel: one function that computes an op on one device type, and the decorated function as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.op_kernels import kernel_of_op

if TYPE_CHECKING:
    from custom_autograd.registration.conditions import Condition

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
        is_inlined: compiled graphs hold what it does in place of the op.
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
    """Return a function that takes what the schema says as the op's kernel."""
    schema = declaration.schema
    positional = [argument.name for argument in schema.arguments if not argument.is_keyword_only]
    return kernel_of_op(function, str(declaration.name), positional, [a.name for a in schema.mutated_arguments])
