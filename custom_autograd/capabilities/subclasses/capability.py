"""Tensor subclasses and modes: what an op does for them, from `register_torch_dispatch`; and for nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from custom_autograd.capabilities.subclasses import nested_tensors as nested
from custom_autograd.capabilities.subclasses.refusals import explain
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import show
from custom_autograd.registration import rules
from custom_autograd.registration.capability import Capability, add
from custom_autograd.registration.one_tuple import enclosed
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import TorchDispatch
from custom_autograd.torch_private.dispatch import register_torch_dispatch
from custom_autograd.torch_private.nested import NestedTensor

F = TypeVar("F", bound=Callable[..., Any])


class Subclasses(Capability):
    """One rule per subclass or mode; all others take the op apart through their own `__torch_dispatch__`."""

    name = "torch_dispatch"

    def attach(self, record: OpRecord) -> None:
        """Register each rule, once, and the one derived for nested tensors."""
        if NestedTensor not in record.attached:
            over_values = nested.attach(record, lambda: NestedTensor in record.registrations.torch_dispatch)
            _register(record, NestedTensor, _nested_dispatch(record, over_values))
        for cls in record.registrations.torch_dispatch:
            if cls not in record.attached:
                _register(record, cls, _dispatch(record, cls))

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Add what to do to an error by which a subclass refuses the op."""
        explain(record, error, values)
        return False

    def describe(self, record: OpRecord) -> str:
        """Return the classes that have a rule."""
        classes = [rule.class_name for rule in record.registrations.torch_dispatch.values()]
        if torch.Tag.pointwise in record.declaration.tags and NestedTensor not in record.registrations.torch_dispatch:
            classes.append("jagged tensors (pointwise: over their values)")
        return f"registered: {', '.join(classes)}" if classes else "none: each class's own __torch_dispatch__"


def _register(record: OpRecord, cls: type, function: Callable[..., Any]) -> None:
    assert record.library is not None
    register_torch_dispatch(record.library, record.dispatcher_name.qualifier, cls, function)
    record.attached.add(cls)


def _dispatch(record: OpRecord, cls: type) -> Callable[..., Any]:
    def dispatch(
        *args: Any, **kwargs: Any
    ) -> Any:  # Any: (mode or class, func, types, args, kwargs), as torch passes it
        return record.registrations.torch_dispatch[cls].function(*args, **kwargs)

    return dispatch


def _nested_dispatch(record: OpRecord, over_values: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for jagged tensors below autograd, which inference mode goes to at once."""
    over_all = enclosed(record.declaration.schema, over_values)

    def dispatch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: as above
        rule = record.registrations.torch_dispatch.get(NestedTensor)
        if rule is not None:
            return rule.function(cls, func, types, args, kwargs)
        return over_all(*args, **(kwargs or {}))

    return dispatch


def register(record: OpRecord, cls: type, function: F, *, replace: bool) -> F:
    """Register what the op does for a subclass or a mode."""
    if not isinstance(cls, type):
        raise record.declaration.origin(location_of(function)).error(
            RegistrationError, "register_torch_dispatch takes a class", found=show(cls)
        )
    rules.check_signature(
        record.declaration, "torch_dispatch rule", function, ["cls", "func", "types", "args", "kwargs"]
    )
    add(record, TorchDispatch(location_of(function), function, cls), replace=replace)
    return function
