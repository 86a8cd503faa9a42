"""OpDef: the attributes of torch.library's own op object, read from what is registered for an op of ours.

`torch.library`, compilers and packages read these of every op that they are given. They are read-only views: rules are
registered through the methods, which check them and derive the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from custom_autograd.capabilities.autocast import policies_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Rule
from custom_autograd.schema.policies import CastPolicy
from custom_autograd.torch_private.definitions import OwnDefinition
from custom_autograd.torch_private.dispatch import OpOverload

Function = Callable[..., Any]  # Any: takes and returns what the schema or torch says


class OpDef(OwnDefinition):
    """An op as `torch.library` sees it."""

    _record: OpRecord

    @property
    def _namespace(self) -> str:  # type: ignore[override]  # read-only, here and below
        return self._record.dispatcher_name.namespace

    @property
    def _name(self) -> str:  # type: ignore[override]
        return self._record.dispatcher_name.qualifier

    @property
    def _opoverload(self) -> OpOverload:  # type: ignore[override]
        assert self._record.overload is not None
        return self._record.overload

    @property
    def _lib(self) -> torch.library.Library:  # type: ignore[override]
        assert self._record.library is not None
        return self._record.library

    @property
    def _schema(self) -> str:  # type: ignore[override]
        return self._record.declaration.schema.text

    @property
    def _tags(self) -> tuple[torch.Tag, ...]:  # type: ignore[override]
        return self._record.declaration.tags

    @property
    def _is_inplace(self) -> bool:  # type: ignore[override]
        return any(tag.name == "inplace" for tag in self._tags)

    @property
    def _is_out(self) -> bool:  # type: ignore[override]
        return any(tag.name == "out" for tag in self._tags)

    @property
    def _out_kwarg_names(self) -> tuple[str, ...]:  # type: ignore[override]
        written = self._record.declaration.schema.mutated_arguments if self._is_out else ()
        return tuple(argument.name for argument in written)

    @property
    def _init_fn(self) -> Function:  # type: ignore[override]
        return self._record.declaration.function

    @property
    def _backend_fns(self) -> Mapping[str | None, Function]:  # type: ignore[override]
        return MappingProxyType({device: kernel.function for device, kernel in self._record.kernels.items()})

    @property
    def _disabled_kernel(self) -> frozenset[str]:  # type: ignore[override]
        return self._record.kernels.disabled

    @property
    def _abstract_fn(self) -> Function | None:  # type: ignore[override]
        rule = self._record.registrations.fake
        if rule is not None:
            return rule.function
        is_needed = bool(self._record.declaration.schema.fresh_outputs)
        return self._record.reference() or (None if is_needed else _returns_nothing_new)

    @property
    def _setup_context_fn(self) -> Function | None:  # type: ignore[override]
        rule = self._record.registrations.drop_in
        return None if rule is None else rule.setup_context

    @property
    def _backward_fn(self) -> Function | None:  # type: ignore[override]
        return _function(self._record.registrations.drop_in)

    @property
    def _vmap_fn(self) -> Function | None:  # type: ignore[override]
        return _function(self._record.registrations.vmap)

    @property
    def _torch_dispatch_fns(self) -> Mapping[type, Function]:  # type: ignore[override]
        return MappingProxyType({cls: rule.function for cls, rule in self._record.registrations.torch_dispatch.items()})

    @property
    def _autocast_dtype(self) -> Mapping[str, torch.dtype | None]:  # type: ignore[override]
        return MappingProxyType({policy.device_type: _dtype(policy) for policy in policies_of(self._record)})

    @property
    def _used_triton_kernels(self) -> list[Any]:  # type: ignore[override]  # Any: as torch annotates it
        return []


def _function(rule: Rule | None) -> Function | None:
    return None if rule is None else rule.function


def _dtype(policy: CastPolicy) -> torch.dtype | None:
    """Return the dtype that a policy casts all inputs to, or None if it is not one dtype."""
    casts = set(policy.arguments.values())
    only = casts.pop() if len(casts) == 1 else None
    return only if isinstance(only, torch.dtype) else None


def _returns_nothing_new(*args: object, **kwargs: object) -> None:
    """Return None, as the fake of an op that returns only what it was given."""
