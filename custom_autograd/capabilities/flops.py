"""FLOPs: the number of floating-point operations that `torch.utils.flop_counter.FlopCounterMode` counts for an op.

forward     the function from `register_flops`, else the reference runs on tensors without data, and is counted
backward    rules are made of PyTorch's operations and of ops, which are counted as they run; else see derived_flops.py
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.lazy import Lazy
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import show
from custom_autograd.execution.bind import Binder
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Capability, add, registered
from custom_autograd.registration.registry import OpRecord, all_records
from custom_autograd.registration.rule_types import NEEDS, Function, NamedRule
from custom_autograd.shapes.rule import bind_arguments, described_op
from custom_autograd.torch_private import flop_counter
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.torch_private.dispatch import is_functionalizing
from custom_autograd.torch_private.transforms import is_transforming
from custom_autograd.values.tensors import mapped
from custom_autograd.values.user_code import Named, noted

if TYPE_CHECKING:
    from custom_autograd.capabilities.derived_flops import DerivedFlops

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class BackwardFlops(NamedRule):
    """The FLOPs of one backward, from `register_flops(backward=...)`."""

    kind = "backward flops"


@dataclass(frozen=True, slots=True)
class Flops(NamedRule):
    """The FLOPs of one forward call, from `register_flops`.

    Attributes:
        backward: those of one backward, or None if they are counted as it runs.
    """

    kind = "flops"
    backward: BackwardFlops | None

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return the function, and that of the backward if there is one."""
        return (self.function,) if self.backward is None else (self.function, self.backward.function)


class FlopCounting(Capability):
    """The formula of an op in torch's table."""

    name = "flops"

    def attach(self, record: OpRecord) -> None:
        """Write the formula into torch's table, in place of the one before; none where nothing is known."""
        record.road.after_call = None
        found: OpFlops | None = record.road.made.pop(self.name, None)
        for overload in () if found is None else found.overloads:
            flop_counter.withdraw(overload)
        if record.registrations.get(Flops) is None and _expression(record) is None and _computation(record) is None:
            return
        record.road.made[self.name] = found = OpFlops(record)
        record.road.after_call = found.note_call
        found.register()

    def describe(self, record: OpRecord) -> str:
        """Return where the numbers come from."""
        rule = record.registrations.get(Flops)
        if rule is not None and rule.backward is not None:
            return f"{registered(rule)}, backward: {registered(rule.backward)}"
        if rule is not None:
            return f"{registered(rule)}"
        if _expression(record) is not None:
            return f"derived from the line of shapes: {_expression(record)}"
        return "none: FLOPs count as 0" if _computation(record) is None else "derived from the reference"


def _register_all() -> None:
    """Register the formulas of all ops that were declared before the program imported the counter."""
    for record in all_records():
        found: OpFlops | None = record.road.made.get(FlopCounting.name)
        if found is not None:
            found.register()


flop_counter.when_imported(_register_all)


def _expression(record: OpRecord) -> str | None:
    """Return the number of FLOPs of a call as an expression over the names of its line, or None."""
    described = described_op(record)
    return None if described is None else described.rule.flops


def _computation(record: OpRecord) -> Callable[..., Any] | None:  # Any: takes and returns what the schema declares
    """Return what computes the op in operations that can be counted: the reference, or the op behind a variant."""
    return record.reference() or record.declaration.composition


class OpFlops:
    """The FLOPs of one op, as its rules are now.

    Attributes:
        overloads: the dispatcher's ops whose calls they are.
    """

    def __init__(self, record: OpRecord) -> None:
        self._record = weakref.ref(record)  # torch's table must not keep a replaced op alive
        self.overloads = [one for one in (record.overload, record.definition.output) if one is not None]
        self._schema = record.declaration.schema
        self._bind = Binder(self._schema)
        self._rule = record.registrations.get(Flops)
        self._declaration, self._computation = record.declaration, _computation(record)

    def register(self) -> None:
        """Write the formula into torch's table, once the counter is imported."""
        for overload in self.overloads:
            flop_counter.register(overload, self.forward)

    @Lazy
    def _derived(self) -> DerivedFlops | None:
        """Return the FLOPs by the reference, or None if there is no reference."""
        if self._computation is None:
            return None
        from custom_autograd.capabilities.derived_flops import DerivedFlops  # loaded where operations are counted

        return DerivedFlops(self._declaration, self._computation)

    @Lazy
    def _counts_backward(self) -> bool:
        """Return True if a number replaces what is counted while the backward runs."""
        if self._rule is not None and self._rule.backward is not None:
            return True
        from custom_autograd.capabilities import derived_flops  # loaded where operations are counted

        record = self._record()
        return record is not None and derived_flops.is_invisible(record)

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares; a symbolic int is not an int
        """Return the FLOPs of a call."""
        record, values = self._record(), self._bind.arguments(*args, **kwargs)
        if record is None:
            return 0
        if self._rule is not None:
            return _evaluated(record, self._rule, _given(record, values, {}))
        described, expression = described_op(record), _expression(record)
        if described is not None and expression is not None:
            from custom_autograd.shapes.notation import evaluate  # loaded for ops with a line

            sizes = described.sizes(values)
            return evaluate(expression, {name: sizes.count(name) for name in sizes.names()})
        assert self._derived is not None  # else nothing is in torch's table
        return self._derived.forward(values)

    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Count the backward of a call when it runs, where the counter could not (Any: as the schema declares)."""
        if not flop_counter.counters() or is_transforming() or is_tracing() or is_functionalizing():
            return  # a transform sees other shapes, and a graph holds what its operations do
        if not self._counts_backward:
            return
        from custom_autograd.capabilities import derived_flops  # loaded where operations are counted

        record, values = self._record(), self._bind.arguments(*args, **kwargs)
        if record is None:
            return
        written = [values[argument.name] for argument in self._schema.mutated_arguments]
        node = derived_flops.find_node(record, [*written, result])
        if node is None:
            return
        needs = {argument.name: _needs(values[argument.name]) for argument in self._schema.differentiable_arguments}
        whole = self._backward(record, values, needs)
        empty = {name: mapped(_without_data, value) for name, value in values.items()}

        def flops(wanted: dict[str, Any]) -> int:
            is_whole = wanted == needs or (self._derived is not None and self._derived.reads_data)
            return whole if is_whole else self._backward(record, empty, wanted)

        derived_flops.count_in(record, node, flops)

    def _backward(self, record: OpRecord, values: Mapping[str, Any], needs: Mapping[str, Any]) -> int:
        """Return the FLOPs of the gradients that are needed."""
        if self._rule is not None and self._rule.backward is not None:
            return int(_evaluated(record, self._rule.backward, _given(record, values, needs)))
        assert self._derived is not None  # the backward is invisible, and there is a reference
        return self._derived.backward(values, needs)


def _needs(value: Any) -> Any:  # Any: a tensor, a list of tensors, or None; a bool, or a list of those
    """Return whether a gradient is needed of an input."""
    if isinstance(value, (list, tuple)):
        return [_needs(item) for item in value]
    return isinstance(value, Tensor) and value.requires_grad


def _without_data(tensor: Tensor) -> Tensor:
    """Return a tensor on "meta" in place of one, so that a graph keeps no memory for its FLOPs."""
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def _given(record: OpRecord, values: Mapping[str, Any], needs: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that a function of FLOPs can name (Any: shapes and values of any type)."""
    from custom_autograd.shapes.described import with_shapes  # loaded where operations are counted

    adapter = adapter_of(record.declaration)
    given = adapter.mirrored(with_shapes(record.declaration.schema, values), values)
    return given if NEEDS in given else {**given, NEEDS: Named(adapter.mirrored(needs, values))}


def _evaluated(record: OpRecord, rule: NamedRule, given: Mapping[str, Any]) -> Any:  # Any: as in `forward`
    """Return what a function of FLOPs returns."""
    found = noted(record.name, rule)(**{name: given[name] for name in rule.names})
    if isinstance(found, torch.SymInt):
        return found
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise record.declaration.origin(rule.where).error(
            RegistrationError,
            f"the {rule.title} rule does not return a number of floating-point operations",
            expected="an int, 0 or more",
            found=show(found),
            do="compute it from the sizes: 2 * m * k * n for a matrix product",
        )
    return found


def register(record: OpRecord, function: F, of_backward: Callable[..., Any] | None, *, replace: bool) -> F:
    """Register the FLOPs of a call, and of its backward."""
    names, of_rule = bind_arguments(record.declaration, f"{Flops.kind} rule", function, {}), None
    if of_backward is not None:
        special = {} if NEEDS in record.declaration.schema.argument_names else {NEEDS: "which gradients are needed"}
        bound = bind_arguments(record.declaration, f"{BackwardFlops.kind} rule", of_backward, special)
        of_rule = BackwardFlops(location_of(of_backward), of_backward, bound)
    add(record, Flops(location_of(function), function, names, of_rule), replace=replace)
    return function
