"""Tensor subclasses and modes: what an op does for them, from `register_torch_dispatch`; and for nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from custom_autograd.capabilities.subclasses.refusals import explain
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import show
from custom_autograd.dispatch.generated import generated_code_of
from custom_autograd.registration.called_by_position import check_signature
from custom_autograd.registration.capability import Capability, add
from custom_autograd.registration.dispatcher_library import implement
from custom_autograd.registration.one_tuple import enclosed
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import TorchDispatch
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.dispatch import register_torch_dispatch
from custom_autograd.torch_private.nested import NestedTensor

F = TypeVar("F", bound=Callable[..., Any])

BACKENDS = ("NestedTensorCPU", "NestedTensorCUDA")


class Subclasses(Capability):
    """One rule per subclass or mode; all others take the op apart through their own `__torch_dispatch__`."""

    name = "torch_dispatch"

    def attach(self, record: OpRecord) -> None:
        """Register each rule, once, and the one derived for nested tensors."""
        if NestedTensor not in record.attached:
            over_values = _over_values(record)
            _attach_above_autograd(record, over_values)
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


def _over_values(record: OpRecord) -> Callable[..., Any]:  # Any: as the schema says
    """Return what the op does with the arguments of the schema, where nested tensors are among them."""
    made: list[Callable[..., Any]] = []

    def over_values(*args: Any, **kwargs: Any) -> Any:
        if not made:
            from custom_autograd.capabilities.subclasses.nested_tensors import OverValues  # loaded for such tensors

            made.append(OverValues(record))
        return made[0](*args, **kwargs)

    return over_values


def _attach_above_autograd(record: OpRecord, over_values: Callable[..., Any]) -> None:
    """Register what the op does for nested tensors at their own dispatch keys, where no other call passes by."""

    @outside_compilation
    def autograd(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:  # Any: a set of dispatch keys; as above
        if NestedTensor in record.registrations.torch_dispatch:
            return generated_code_of(record).autograd(keyset, *args, **kwargs)
        return over_values(*args, **kwargs)

    implement(record, "AutogradNestedTensor", autograd, with_keyset=True)
    for key in BACKENDS:
        implement(record, key, over_values)


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
            RegistrationError, "register_torch_dispatch takes a class", expected="a subclass or a mode", found=show(cls)
        )
    check_signature(record.declaration, "torch_dispatch rule", function, ["cls", "func", "types", "args", "kwargs"])
    add(record, TorchDispatch(location_of(function), function, cls), replace=replace)
    return function
