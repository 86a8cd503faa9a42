"""Kernels: one or several for each device type, and what the dispatcher holds in front of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.device_types import advice_on, has_index, name_of
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.option_types import listed
from custom_autograd.execution import attaching
from custom_autograd.execution.kernel_options import KernelOptions, make_kernel
from custom_autograd.registration.capability import Capability, attach_all
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Effect
from custom_autograd.registration.rules import check_call, refusing
from custom_autograd.torch_private.dispatch import key_of_device

F = TypeVar("F", bound=Callable[..., Any])


class KernelsCapability(Capability):
    """The op's kernels, its Autograd kernel and its version counters."""

    name = "kernels"

    def attach(self, record: OpRecord) -> None:
        """Register all three; they look up rules when they run."""
        attaching.attach(record)

    def describe(self, record: OpRecord) -> str:
        """Return the device types with a kernel of their own, and the default kernel."""
        kernels = [
            f"{kernel.title.replace('default', 'any device', 1)} ({kernel.details})" for kernel in record.kernels.all()
        ]
        return f"registered: {', '.join(kernels)}"


def register(
    record: OpRecord, device_types: str | Sequence[str] | None, function: F, options: KernelOptions, *, replace: bool
) -> F:
    """Register a kernel for each device type."""
    declaration = record.declaration
    declaration.check_bools(inline=options.inline, replace=replace)
    reject = refusing(declaration, function)
    ordering = record.registrations.get(Effect)
    if options.inline and ordering is not None and ordering.effect is not None:
        problem = "an op with an effect cannot be inlined into compiled graphs: its kernel has none"
        raise reject(problem, do="leave inline= out: the effect then orders the calls of the op")
    registered = adapter_of(declaration).kernel(function)
    own = [] if device_types is None else listed(reject, "device_types", device_types, example="'cpu'")
    own = [name_of(one) for one in own]
    served: list[str | None] = [None] if device_types is None else [*own]
    for device_type in own:
        _check_device(record, device_type, reject)
    check_call(declaration, f"{' and '.join(own) or 'default'} kernel", registered)
    location = location_of(function)
    added = [make_kernel(declaration, one, registered, location, options) for one in served]
    with record.lock:
        record.kernels.add(*added, replace=replace)
        for device_type in own:
            attaching.attach_device(record, device_type)
    if options.inline:
        attach_all(record)
    return function


def _check_device(record: OpRecord, device_type: str, reject: Callable[..., RegistrationError]) -> None:
    if has_index(device_type):
        type_alone = device_type.partition(":")[0]
        raise reject(
            "a kernel serves every device of a type",
            expected=f"a device type, such as {type_alone!r}",
            found=repr(device_type),
            do=f"register it for {type_alone!r}; it runs with the device of its tensors as the current one",
        )
    try:
        key_of_device(device_type)
        torch.device(device_type)
    except RuntimeError as error:
        raise reject(
            f"torch has no device type {device_type!r}",
            expected="'cpu', 'cuda', 'mps', 'xpu', ...",
            found=repr(device_type),
            do=advice_on(device_type),
        ) from error
    schema = record.declaration.schema
    if not schema.tensor_arguments and not schema.device_arguments:
        raise reject(
            "an op without tensors cannot choose between devices",
            expected="an argument 'device: torch.device'",
            do="add one, or declare the op with device_types=None",
        )
