"""Tensor subclasses and modes: what an op does for them, from `register_torch_dispatch`; and what refusals say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.masked import MaskedTensor

from custom_autograd.core.errors import KernelError, RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import show
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Capability, add
from custom_autograd.registration.dispatcher_library import enclosed, implement, implement_torch_dispatch
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Rule
from custom_autograd.registration.rules import check_signature
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.nested import NestedTensor
from custom_autograd.values.tensors import tensors_in
from custom_autograd.values.user_code import add_note

NOT_IMPLEMENTED = "all __torch_dispatch__ handlers returned NotImplemented"


def explain(record: OpRecord, error: Exception, values: Sequence[Any]) -> None:
    """Add what to do to an error by which a subclass refuses an op; leaves every other error alone."""
    text = str(error)
    if f"torch._ops.{record.overload}" not in text:
        return  # another op, within a kernel of this one
    if NOT_IMPLEMENTED in text:
        if any(isinstance(tensor, MaskedTensor) for tensor in tensors_in(values)):
            raise _masked(record) from error
        advice = "register_torch_dispatch(cls, rule) says what the op does for a class"
        add_note(error, f"{record.name}, declared at {record.declaration.location}: {advice}")


def _masked(record: OpRecord) -> KernelError:
    return KernelError(
        record.name,
        "the op is called with a masked tensor, and has no rule for those",
        expected="plain tensors",
        found="torch.masked.MaskedTensor",
        declared=record.declaration.location,
        do="call it on x.get_data(), and mask the result with x.get_mask(); or "
        "register_torch_dispatch(torch.masked.MaskedTensor, rule)",
    )


F = TypeVar("F", bound=Callable[..., Any])

BACKENDS = ("NestedTensorCPU", "NestedTensorCUDA")


@dataclass(frozen=True, slots=True)
class TorchDispatch(Rule):
    """The rule of the op for a tensor subclass or a mode, from `register_torch_dispatch`."""

    kind = "torch_dispatch"
    cls: type

    @property
    def class_name(self) -> str:
        """Return the module and the name of the class."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def part(self) -> type:
        """Return the class."""
        return self.cls

    @property
    def title(self) -> str:
        """Return the word for it and the class."""
        return f"{self.kind} {self.class_name}"


class SubclassesCapability(Capability):
    """One rule per subclass or mode; all others take the op apart through their own `__torch_dispatch__`."""

    name = "torch_dispatch"

    def attach(self, record: OpRecord) -> None:
        """Register each rule, once, and the one derived for nested tensors."""
        if NestedTensor not in record.definition.attached:
            over_values = _over_values(record)
            _attach_above_autograd(record, over_values)
            implement_torch_dispatch(record, NestedTensor, _nested_dispatch(record, over_values))
        for rule in record.registrations.all_of(TorchDispatch):
            implement_torch_dispatch(record, rule.cls, _dispatch(record, rule.cls))

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Add what to do to an error by which a subclass refuses the op."""
        explain(record, error, values)
        return False

    def describe(self, record: OpRecord) -> str:
        """Return the classes that have a rule."""
        classes = [rule.class_name for rule in record.registrations.all_of(TorchDispatch)]
        is_derived = record.registrations.get(TorchDispatch, NestedTensor) is None
        if torch.Tag.pointwise in record.declaration.tags and is_derived:
            classes.append("jagged tensors (pointwise: over their values)")
        return f"registered: {', '.join(classes)}" if classes else "none: each class's own __torch_dispatch__"


def _dispatch(record: OpRecord, cls: type) -> Callable[..., Any]:
    def dispatch(
        *args: Any, **kwargs: Any
    ) -> Any:  # Any: (mode or class, func, types, args, kwargs), as torch passes it
        rule = record.registrations.get(TorchDispatch, cls)
        assert rule is not None  # it is attached for a rule, which only another one can replace
        return rule.function(*args, **kwargs)

    return dispatch


def _over_values(record: OpRecord) -> Callable[..., Any]:  # Any: as the schema declares
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
        if record.registrations.get(TorchDispatch, NestedTensor) is not None:
            return generated_code_of(record).autograd(keyset, *args, **kwargs)
        return over_values(*args, **kwargs)

    implement(record, "AutogradNestedTensor", make=lambda: autograd, with_keyset=True)
    implement(record, *BACKENDS, make=lambda: over_values)


def _nested_dispatch(record: OpRecord, over_values: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for jagged tensors below autograd, which inference mode goes to at once."""
    over_all = enclosed(record.declaration.schema, over_values)

    def dispatch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: as above
        rule = record.registrations.get(TorchDispatch, NestedTensor)
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
