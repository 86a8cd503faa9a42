"""The attributes of torch.library's own op object, read from what is registered for an op of ours.

`torch.library`, compilers and packages read these of every op that they are given. They are read-only views: rules are
registered through the methods, which check them and derive the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from custom_autograd.capabilities.autocast import policies_of
from custom_autograd.capabilities.subclasses import TorchDispatch
from custom_autograd.capabilities.vmap import VmapRule
from custom_autograd.registration.policy_types import CastPolicy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import DropInRule, FakeRule, Rule

Function = Callable[..., Any]  # Any: takes and returns what the schema or torch declares
C = TypeVar("C", bound=type)


def with_attributes(cls: C) -> C:
    """Give a class whose objects have a `_record` these attributes."""
    for name, read in ATTRIBUTES.items():
        setattr(cls, name, _view(read))
    return cls


def _view(read: Callable[[OpRecord], object]) -> property:
    return property(lambda op: read(op._record))  # noqa: SLF001  # the op is ours


def _is_tagged(record: OpRecord, tag: str) -> bool:
    return any(one.name == tag for one in record.declaration.tags)


def _written_by_keyword(record: OpRecord) -> tuple[str, ...]:
    written = record.declaration.schema.mutated_arguments if _is_tagged(record, "out") else ()
    return tuple(argument.name for argument in written)


def _fake(record: OpRecord) -> Function | None:
    rule = record.registrations.get(FakeRule)
    if rule is not None:
        return rule.function
    is_needed = bool(record.declaration.schema.fresh_outputs)
    return record.reference() or (None if is_needed else _returns_nothing_new)


def _returns_nothing_new(*args: object, **kwargs: object) -> None:
    """Return None, as the fake of an op that returns only what it was given."""


def _of(rule: Rule | None, attribute: str = "function") -> Function | None:
    return getattr(rule, attribute, None)


def _dtype(policy: CastPolicy) -> torch.dtype | None:
    """Return the dtype that a policy casts all inputs to, or None if it is not one dtype."""
    casts = set(policy.arguments.values())
    only = casts.pop() if len(casts) == 1 else None
    return only if isinstance(only, torch.dtype) else None


class _SchemaText(str):
    """The text of a schema. torch.fx asks the schema of what a node calls whether it writes."""

    is_mutable: bool


def _schema_text(record: OpRecord) -> _SchemaText:
    text = _SchemaText(record.declaration.schema.text)
    text.is_mutable = bool(record.declaration.schema.mutated_arguments)
    return text


ATTRIBUTES: Mapping[str, Callable[[OpRecord], object]] = {
    "_namespace": lambda record: record.definition.name.namespace,
    "_name": lambda record: record.definition.qualifier,
    "_opoverload": lambda record: record.overload,
    "_lib": lambda record: record.definition.library,
    "_schema": _schema_text,
    "_tags": lambda record: record.declaration.tags,
    "_is_inplace": lambda record: _is_tagged(record, "inplace"),
    "_is_out": lambda record: _is_tagged(record, "out"),
    "_out_kwarg_names": _written_by_keyword,
    "_init_fn": lambda record: record.declaration.function,
    "_backend_fns": lambda record: MappingProxyType({device: one.function for device, one in record.kernels.items()}),
    "_disabled_kernel": lambda record: record.kernels.disabled,
    "_abstract_fn": _fake,
    "_setup_context_fn": lambda record: _of(record.registrations.get(DropInRule), "setup_context"),
    "_backward_fn": lambda record: _of(record.registrations.get(DropInRule)),
    "_vmap_fn": lambda record: _of(record.registrations.get(VmapRule)),
    "_torch_dispatch_fns": lambda record: MappingProxyType(
        {rule.cls: rule.function for rule in record.registrations.all_of(TorchDispatch)}
    ),
    "_autocast_dtype": lambda record: MappingProxyType(
        {policy.device_type: _dtype(policy) for policy in policies_of(record)}
    ),
    "_used_triton_kernels": lambda record: [],
}
