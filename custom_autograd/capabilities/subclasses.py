"""Tensor subclasses and modes: what an op does for them, from `register_torch_dispatch`; and what refusals say.

Nested tensors: a pointwise op of jagged ones is the op of their values, and everything else is refused. It is above
autograd: what is recorded is the call of the op on plain tensors, between the way to the values and the way back. So
rules, transforms and compilers see plain tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.masked import MaskedTensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import show
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Capability, add
from custom_autograd.registration.dispatcher_library import enclosed, implement, implement_torch_dispatch, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Rule
from custom_autograd.registration.rules import check_signature, refusing
from custom_autograd.schema.schema import Argument
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.functions import direct_apply
from custom_autograd.torch_private.nested import NestedTensor, Raggedness, make_nested, raggedness_of, values_of
from custom_autograd.values.tensors import tensors_in
from custom_autograd.values.user_code import add_note

NOT_IMPLEMENTED = "all __torch_dispatch__ handlers returned NotImplemented"


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
            over_values = OverValues(record)
            _attach_above_autograd(record, over_values)
            derived = enclosed(record.declaration.schema, over_values)  # below autograd, as in inference mode
            implement_torch_dispatch(record, NestedTensor, _dispatch(record, NestedTensor, derived))
        for rule in record.registrations.all_of(TorchDispatch):
            implement_torch_dispatch(record, rule.cls, _dispatch(record, rule.cls))

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Add what to do to an error by which a subclass refuses the op, and not another op within a kernel of it."""
        text = str(error)
        if f"torch._ops.{record.overload}" not in text or NOT_IMPLEMENTED not in text:
            return False
        if any(isinstance(tensor, MaskedTensor) for tensor in tensors_in(values)):
            raise record.declaration.error(
                KernelError,
                "the op is called with a masked tensor, and has no rule for those",
                expected="plain tensors",
                found="torch.masked.MaskedTensor",
                do="call it on x.get_data(), and mask the result with x.get_mask(); or "
                "register_torch_dispatch(torch.masked.MaskedTensor, rule)",
            ) from error
        advice = "register_torch_dispatch(cls, rule) says what the op does for a class"
        add_note(error, f"{record.name}, declared at {record.declaration.location}: {advice}")
        return False

    def describe(self, record: OpRecord) -> str:
        """Return the classes that have a rule."""
        classes = [rule.class_name for rule in record.registrations.all_of(TorchDispatch)]
        is_derived = record.registrations.get(TorchDispatch, NestedTensor) is None
        if torch.Tag.pointwise in record.declaration.tags and is_derived:
            classes.append("jagged tensors (pointwise: over their values)")
        return f"registered: {', '.join(classes)}" if classes else "none: each class's own __torch_dispatch__"


def _dispatch(record: OpRecord, cls: type, derived: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return what runs the rule for a class that is registered by then, or else what is derived for it."""

    def dispatch(own: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: as torch passes it
        rule = record.registrations.get(TorchDispatch, cls)
        if rule is not None:
            return rule.function(own, func, types, args, kwargs)
        assert derived is not None  # it is attached for a rule, which only another one can replace
        return derived(*args, **(kwargs or {}))

    return dispatch


def _attach_above_autograd(record: OpRecord, over_values: Callable[..., Any]) -> None:
    """Register what the op does for nested tensors at their own dispatch keys, where no other call passes by."""

    @outside_compilation
    def autograd(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:  # Any: a set of dispatch keys; as above
        if record.registrations.get(TorchDispatch, NestedTensor) is not None:
            return generated_code_of(record).autograd(keyset, *args, **kwargs)
        return over_values(*args, **kwargs)

    implement(record, "AutogradNestedTensor", make=lambda: autograd, with_keyset=True)
    implement(record, *BACKENDS, make=lambda: over_values)


def register(record: OpRecord, cls: type, function: F, *, replace: bool) -> F:
    """Register what the op does for a subclass or a mode."""
    if not isinstance(cls, type):
        raise refusing(record.declaration, function)(
            "register_torch_dispatch takes a class", expected="a subclass or a mode", found=show(cls)
        )
    check_signature(record.declaration, "torch_dispatch rule", function, ["cls", "func", "types", "args", "kwargs"])
    add(record, TorchDispatch(location_of(function), function, cls), replace=replace)
    return function


# To the values of a jagged tensor and back, differentiable any number of times, in reverse and in forward mode.
#
# PyTorch's own `values()` has neither a second derivative nor forward mode.


class _Values(Function):
    @staticmethod
    def forward(nested: NestedTensor) -> Tensor:
        return values_of(nested)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[NestedTensor], output: Tensor) -> None:  # Any: torch gives ctx no type
        del output
        ctx.set_materialize_grads(False)  # torch's zeros would not be jagged
        ctx.raggedness = raggedness_of(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        return None if grads[0] is None else nested_of(grads[0], ctx.raggedness)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        del ctx
        return to_values(tangents[0])


class _Nested(Function):
    @staticmethod
    def forward(values: Tensor, raggedness: Raggedness) -> Tensor:
        return make_nested(values, raggedness)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Raggedness], output: Tensor) -> None:  # Any: as above
        del output
        ctx.set_materialize_grads(False)
        ctx.raggedness = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None]:
        del ctx
        return None if grads[0] is None else to_values(grads[0]), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return nested_of(tangents[0], ctx.raggedness)


to_values: Callable[[NestedTensor], Tensor] = direct_apply(_Values)
"""Return the values of a jagged tensor."""
nested_of: Callable[[Tensor, Raggedness], Tensor] = direct_apply(_Nested)
"""Return the jagged tensor of some values."""


class OverValues:
    """Runs one op on the values of jagged tensors, where it is declared to be pointwise."""

    def __init__(self, record: OpRecord) -> None:
        self.record = record
        self.bind = Binder(record.declaration.schema)
        self._error = partial(record.declaration.error, KernelError)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares
        """Return the op on nested tensors."""
        arguments = self.bind.raw(*args, **kwargs)
        name, first = self._first(arguments)
        values = {one: self._unwrap(one, value, name, first) for one, value in arguments.items()}
        positional, keywords = self.bind.call(values)
        result = opened(self.record)(*positional, **keywords)
        raggedness = raggedness_of(first)
        return self._wrap(result, raggedness, tuple(first.values().shape[: raggedness.dim]))

    def _first(self, arguments: Mapping[str, Any]) -> tuple[str, NestedTensor]:
        """Return the first jagged tensor and its argument, once it is clear that the op can do anything with it."""
        schema = self.record.declaration.schema
        nested = [(name, one) for name, value in arguments.items() for one in tensors_in([value]) if one.is_nested]
        for name, one in nested:
            if not isinstance(one, NestedTensor):
                self._refuse_strided(name)
        name, first = nested[0]
        if torch.Tag.pointwise not in self.record.declaration.tags:
            self._refuse_all(name)
        if schema.mutated_arguments or schema.is_view:
            self._refuse_memory(schema.mutated_arguments[0] if schema.mutated_arguments else None)
        assert isinstance(first, NestedTensor)
        return name, first

    def _unwrap(self, name: str, value: Any, first_name: str, first: NestedTensor) -> Any:
        """Return an argument for the call on the values (Any: an argument of any type)."""
        if isinstance(value, (list, tuple)):
            return [self._unwrap(name, item, first_name, first) for item in value]
        if isinstance(value, NestedTensor):
            if not _are_ragged_alike(value, first):
                shape = f"'{first_name}' has shape {_shown(first)}"
                raise self._error(
                    f"the nested tensors '{first_name}' and '{name}' are not ragged alike",
                    expected=f"the same offsets, and as many dimensions, in both; {shape}",
                    found=f"'{name}' of shape {_shown(value)}",
                    do=f"make one from the other's offsets: "
                    f"torch.nested.nested_tensor_from_jagged(values, offsets={first_name}.offsets())",
                )
            return to_values(value)
        return self._spread(name, value, first_name, first) if isinstance(value, Tensor) else value

    def _spread(self, name: str, dense: Tensor, first_name: str, first: NestedTensor) -> Tensor:
        """Return a dense tensor as it broadcasts against the values: alike for all rows, or one row per component."""
        raggedness = raggedness_of(first)
        is_per_component = dense.dim() == first.dim() and dense.shape[:2] == (first.shape[0], 1)
        if is_per_component and raggedness.dim == 1 and raggedness.lengths is None:
            lengths = raggedness.offsets.diff()
            return dense.squeeze(1).repeat_interleave(lengths, 0, output_size=first.values().shape[0])
        trailing = dense
        while trailing.dim() > 0 and trailing.shape[0] == 1:
            trailing = trailing.squeeze(0)
        if trailing.dim() > first.dim() - 1 - raggedness.dim or dense.dim() > first.dim():
            raise self._error(
                f"the dense tensor '{name}' does not broadcast against the nested tensor '{first_name}'",
                expected=f"no more than the dimensions behind the ragged one of {_shown(first)}, or size 1 there",
                found=str(tuple(dense.shape)),
                do="make it a nested tensor with the same offsets",
            )
        return trailing

    def _wrap(self, result: Any, raggedness: Raggedness, sizes: tuple[int, ...]) -> Any:
        """Return what the op returned for the values, ragged again (Any: whatever the schema says)."""
        if isinstance(result, (list, tuple)):
            return type(result)(self._wrap(item, raggedness, sizes) for item in result)
        if not isinstance(result, Tensor):
            return result
        if tuple(result.shape[: len(sizes)]) != sizes:
            raise self._error(
                "the op is declared pointwise, and its output has another shape than the values",
                expected=f"{sizes}, and any sizes behind",
                found=str(tuple(result.shape)),
                do="declare it without torch.Tag.pointwise",
            )
        return nested_of(result, raggedness)

    def _refuse_strided(self, name: str) -> NoReturn:
        raise self._error(
            f"'{name}' is a nested tensor of strided layout",
            expected="dense tensors, or nested tensors of layout torch.jagged",
            found="layout torch.strided",
            do="make it with torch.nested.nested_tensor(..., layout=torch.jagged)",
        )

    def _refuse_all(self, name: str) -> NoReturn:
        raise self._error(
            f"'{name}' is a nested tensor, and the op has no rule for those",
            expected="a dense tensor, a pointwise op, or a rule",
            found="layout torch.jagged",
            do="declare it with tags=torch.Tag.pointwise if each element of an output depends on the elements in its "
            f"own place only; else register_torch_dispatch(type({name}), rule)",
        )

    def _refuse_memory(self, written: Argument | None) -> NoReturn:
        does = "returns views" if written is None else f"writes to '{written.name}'"
        raise self._error(
            f"the op {does}, which it cannot for nested tensors",
            do="call it on x.values(), or register_torch_dispatch(type(x), rule)",
        )


def _are_ragged_alike(one: NestedTensor, other: NestedTensor) -> bool:
    """Return True if two have as many dimensions, and their components at the same offsets in their values."""
    # A ragged size means offsets or, where there are holes between the components, for lengths: then offsets of the
    # same lengths may still differ.
    if one.dim() != other.dim():
        return False
    its, others = raggedness_of(one), raggedness_of(other)
    if its.dim != others.dim or one.shape[: its.dim + 1] != other.shape[: its.dim + 1]:
        return False
    return (its.lengths is None and others.lengths is None) or its.offsets is others.offsets


def _shown(tensor: NestedTensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
