"""What is registered with the dispatcher for every op: backends, Autograd, version counters.

The registered functions look up the generated code of the op at each call, because the dispatcher cannot swap a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from custom_autograd.core.errors import raise_if_any
from custom_autograd.execution import call, composition, functional_op
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.current_device import are_on_the_host, explain, has_accelerator, on_device, unserved
from custom_autograd.execution.generated import DispatchedCalls, generated_code_of
from custom_autograd.registration.dispatcher_library import implement, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import DropInRule
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private import dispatch
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import are_lazy_bits_ignored
from custom_autograd.torch_private.guards import torch_dispatch_modes
from custom_autograd.values.validation import keep


def attach(record: OpRecord) -> None:
    """Register the op's kernels and its autograd with the dispatcher, and make what a call runs."""
    if record.dispatched is None or record.road.is_traced:  # a new function makes compiled callers trace the new rules
        record.dispatched = DispatchedCalls(record)
        call.withdraw(record)
    record.kernels.around = on_device()
    implement(record, "CompositeExplicitAutograd", make=partial(_backend, record, None))
    for device_type in record.kernels:
        if device_type is not None:
            attach_device(record, device_type)
    autograd = composition.autograd if composition.may_compose(record) else _autograd
    implement(record, "Autograd", make=partial(autograd, record), with_keyset=True)
    if record.declaration.schema.mutated_arguments:
        implement(record, "ADInplaceOrView", make=partial(_versioning, record), with_keyset=True)
    if record.declaration.schema.is_view:
        implement(record, "Functionalize", make=partial(composition.functionalize, record))
        _note_views(record)
    elif functional_op.is_needed(record.declaration.schema, record.declaration.tags):
        functional_op.attach(record)


def _note_views(record: OpRecord) -> None:
    """Let PyTorch note the output of a drop-in op as a view of the input, whatever class of tensor made it.

    PyTorch does so for one tensor and one output. A view without gradient rules is composed: see composition.py.
    """
    schema = record.declaration.schema
    is_one = len(schema.tensor_arguments) == len(schema.outputs) == 1
    if is_one and record.registrations.get(DropInRule) is not None and "views" not in record.definition.attached:
        assert record.definition.library is not None
        dispatch.note_views(record.definition.library, record.definition.qualifier)
        record.definition.attached.add("views")


def attach_device(record: OpRecord, device_type: str) -> None:
    """Register the kernel of one device type."""
    implement(record, dispatch.key_of_device(device_type), make=partial(_backend, record, device_type))
    if not record.declaration.schema.tensor_arguments:
        device = next((a.name for a in record.declaration.schema.device_arguments), None)
        if device is not None:
            implement(record, "BackendSelect", make=partial(_backend_select, record, device), with_keyset=True)


def _backend(record: OpRecord, device_type: str | None) -> Callable[..., Any]:  # Any: as the schema declares
    road = record.road
    is_default = device_type is None and has_accelerator()

    @outside_compilation
    def backend(*args: Any, **kwargs: Any) -> Any:
        key = "cpu" if is_default and not kwargs and are_on_the_host(args) else device_type
        run = road.at_keys.get(key)
        if run is None:
            if device_type not in record.kernels:
                raise unserved(record, args, kwargs)
            run = keep(road, key, lambda: generated_code_of(record).kernel_of(key))
            for listener in record.when_called:
                listener(record)
        try:
            # Below a TorchDispatchMode a kernel would compute a * b.conj() as a * b, and torch.func would raise in it:
            # tests/dispatch/test_lazy_views.py and test_transforms_in_kernels.py.
            if are_lazy_bits_ignored():
                return dispatch.with_keys_restored(run, *args, **kwargs)
            return run(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            raise_if_any(explain(record, error, partial(Binder(record.declaration.schema).raw, *args, **kwargs)), error)
            raise

    return backend


def _autograd(record: OpRecord) -> Callable[..., Any]:
    road = record.road

    def find() -> Callable[..., Any]:
        return generated_code_of(record).autograd

    @outside_compilation
    def autograd(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        run = road.at_keys.get("Autograd") or keep(road, "Autograd", find)
        try:
            result = run(keyset, *args, **kwargs)
        except (TypeError, NotImplementedError) as error:
            values = [*args, *kwargs.values()]
            if not any(capability.explain(record, error, values) for capability in record.capabilities):
                raise
            result = find()(keyset, *args, **kwargs)
        if road.after_call is not None and torch_dispatch_modes():
            road.after_call(args, kwargs, result)
        return result

    return autograd


def _versioning(record: OpRecord) -> Callable[..., Any]:
    """Count the writes after they were made, so that a mode that watches saved tensors sees the old version first."""
    schema: Schema = record.declaration.schema
    bind = Binder(schema)

    def versioning(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        if torch_dispatch_modes():
            for capability in record.capabilities:
                capability.before_write(record)
        result = dispatch.redispatch(opened(record), keyset & dispatch.BELOW_VERSIONING, *args, **kwargs)
        values = bind.raw(*args, **kwargs)
        for argument in schema.mutated_arguments:
            dispatch.increment_version(values[argument.name])
        return result

    return versioning


def _backend_select(record: OpRecord, device: str) -> Callable[..., Any]:
    """Return the kernel that sends an op without tensors where its device argument says."""
    bind = Binder(record.declaration.schema)

    def backend_select(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        del keyset
        chosen = torch.device(bind.raw(*args, **kwargs)[device] or "cpu")
        if chosen.type not in record.kernels and None not in record.kernels:
            raise record.kernels.missing(chosen.type)
        key = dispatch.key_of_device(chosen.type)
        return dispatch.redispatch(opened(record), dispatch.key_set(key), *args, **kwargs)

    return backend_select
