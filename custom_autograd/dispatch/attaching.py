"""What is registered with the dispatcher for every op: backends, Autograd, version counters.

The registered functions look up the program of the op at each call, because the dispatcher cannot swap a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.calls.bind import Binder
from custom_autograd.core.schema import Schema
from custom_autograd.dispatch import composition
from custom_autograd.dispatch.call import make_call, make_traced
from custom_autograd.dispatch.direct_calls import Roads
from custom_autograd.dispatch.generated import program_of
from custom_autograd.registration.library import implement
from custom_autograd.registration.one_tuple import opened
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private import dispatch, guards
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.values.tensors import first_tensor


def attach(entry: Entry) -> None:
    """Register the op's kernels and its autograd with the dispatcher, and make what a call runs."""
    if entry.roads is None:
        entry.roads = Roads(entry)
    if entry.call is None or entry.is_traced:  # a new function makes compiled callers trace the new rules
        entry.call = make_call(entry)
        entry.traced = make_traced(entry, entry.call)
    implement(entry, "CompositeExplicitAutograd", _backend(entry, None))
    for device_type in entry.kernels:
        if device_type is not None:
            attach_device(entry, device_type)
    autograd = composition.autograd if composition.may_compose(entry) else _autograd
    implement(entry, "Autograd", autograd(entry), with_keyset=True)
    if entry.declaration.schema.mutated_arguments:
        implement(entry, "ADInplaceOrView", _versioning(entry), with_keyset=True)
    if entry.declaration.schema.is_view:
        implement(entry, "Functionalize", composition.functionalize(entry))


def attach_device(entry: Entry, device_type: str) -> None:
    """Register the kernel of one device type.

    Raises:
        RuntimeError: torch knows no such device type.
    """
    implement(entry, dispatch.key_of_device(device_type), _backend(entry, device_type))
    if not entry.declaration.schema.tensor_arguments:
        device = next((a.name for a in entry.declaration.schema.device_arguments), None)
        if device is not None:
            implement(entry, "BackendSelect", _backend_select(entry, device), with_keyset=True)


def _backend(entry: Entry, device_type: str | None) -> Callable[..., Any]:  # Any: as the schema says
    @outside_compilation
    def backend(*args: Any, **kwargs: Any) -> Any:
        if device_type not in entry.kernels:
            tensor = first_tensor([*args, *kwargs.values()])
            raise entry.kernels.missing(*_kind_of(tensor))
        return program_of(entry).kernel(device_type, *args, **kwargs)

    return backend


def _kind_of(tensor: torch.Tensor | None) -> tuple[str | None, torch.layout]:
    return (None, torch.strided) if tensor is None else (tensor.device.type, tensor.layout)


def _autograd(entry: Entry) -> Callable[..., Any]:
    @outside_compilation
    def autograd(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return program_of(entry).autograd(keyset, *args, **kwargs)
        except (TypeError, NotImplementedError) as error:
            values = [*args, *kwargs.values()]
            if not any(capability.explain(entry, error, values) for capability in entry.capabilities):
                raise
        return program_of(entry).autograd(keyset, *args, **kwargs)

    return autograd


def _versioning(entry: Entry) -> Callable[..., Any]:
    """Count the writes after they were made, so that a mode that watches saved tensors sees the old version first."""
    schema: Schema = entry.declaration.schema
    bind = Binder(schema)

    def versioning(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        if guards.torch_dispatch_modes():
            for capability in entry.capabilities:
                capability.before_write(entry)
        result = dispatch.redispatch(opened(entry), keyset & dispatch.BELOW_VERSIONING, *args, **kwargs)
        values = bind.raw(*args, **kwargs)
        for argument in schema.mutated_arguments:
            dispatch.increment_version(values[argument.name])
        return result

    return versioning


def _backend_select(entry: Entry, device: str) -> Callable[..., Any]:
    """Return the kernel that sends an op without tensors where its device argument says."""
    bind = Binder(entry.declaration.schema)

    def backend_select(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        del keyset
        chosen = torch.device(bind.raw(*args, **kwargs)[device] or "cpu")
        if chosen.type not in entry.kernels and None not in entry.kernels:
            raise entry.kernels.missing(chosen.type)
        key = dispatch.key_of_device(chosen.type)
        return dispatch.redispatch(opened(entry), dispatch.key_set(key), *args, **kwargs)

    return backend_select
