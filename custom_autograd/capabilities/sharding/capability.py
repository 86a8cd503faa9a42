"""Sharding: how the calls of an op with DTensors run.

rules of register_sharding        on local tensors, where least is sent by cutting their dimension
a line of shapes, or pointwise    by strategies below autograd; on local tensors if torch's dispatcher cannot, or if
                                  gradients are recorded: rules need not know DTensors, which have no strategy for
                                  many of torch's operations, and cannot be mixed with plain tensors
a reference                       the reference, on the DTensors
none of them                      replicated inputs only, on local tensors; all others are an error
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from custom_autograd.calls.bind import Binder
from custom_autograd.capabilities.sharding.choice import Choice, placed_in
from custom_autograd.capabilities.sharding.combining import Combining
from custom_autograd.capabilities.sharding.local_calls import LocalCalls
from custom_autograd.capabilities.sharding.rows import replicated
from custom_autograd.capabilities.sharding.strategies import can_have_strategies, has_unknown_outputs, key_of, rule_of
from custom_autograd.core.errors import KernelError
from custom_autograd.core.schema import Schema
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import described_op
from custom_autograd.torch_private import placements
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.values.results import ResultReader
from custom_autograd.values.user_code import add_note

NO_STRATEGY = "does not have a sharding strategy registered"
ADVICE = (
    "its placements follow from a line of shapes: custom_op(..., shapes=...) or register_shapes; or write them by hand "
    "with torch.distributed.tensor.experimental.register_sharding(torch.ops.{}.{}.default)"
)


class Sharding(Capability):
    """Placements of DTensors."""

    name = "sharding"

    def attach(self, record: OpRecord) -> None:
        """Register strategies, or what runs calls on local tensors."""
        schema = record.declaration.schema
        overloads = [one for one in (record.overload, record.output) if one is not None]
        has_rows = _has_rows(record)
        has_strategies = has_rows and can_have_strategies(schema)
        for overload in overloads:
            if has_strategies:
                first, names = key_of(record)
                placements.register(overload, rule_of(record), first, names)
            else:
                placements.withdraw(overload)
        takes_tensors = bool(schema.tensor_arguments) and record.declaration.composition is None and not schema.is_view
        record.around_autograd = _around(record, has_rows, has_strategies) if takes_tensors else None

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Say what registers the placements of an op, if torch does not know them."""
        if f"Operator {record.overload} {NO_STRATEGY}" in str(error):
            add_note(error, f"{record.name}, declared at {record.declaration.location}: {_advice(record)}")
        return False

    def describe(self, record: OpRecord) -> str:
        """Return where the placements of DTensors come from."""
        return f"{_source(record)}{_rules(record)}"


def _unknown(record: OpRecord) -> KernelError:
    return KernelError(
        record.name,
        "the op meets a DTensor that is not replicated, and nothing says how the op is sharded",
        declared=record.declaration.location,
        do=_advice(record),
    )


def _advice(record: OpRecord) -> str:
    return ADVICE.format(*str(record.dispatcher_name).split("::"))


def _source(record: OpRecord) -> str:
    described = described_op(record)
    if described is not None:
        return f"derived from the line of shapes ({described.rule.location})"
    if _is_pointwise(record.declaration.schema, record.declaration.tags):
        return "derived: pointwise, as its output is sharded"
    if record.reference() is not None:
        return f"derived from the reference ({record.reference_location}), which runs on the DTensors"
    return "missing: shapes=, register_shapes"


def _rules(record: OpRecord) -> str:
    rules = record.registrations.all_of(Combining)
    return "".join(f"; '{rule.dim}' registered ({rule.location})" for rule in rules)


def _has_rows(record: OpRecord) -> bool:
    is_pointwise = _is_pointwise(record.declaration.schema, record.declaration.tags)
    return described_op(record) is not None or is_pointwise


def _is_pointwise(schema: Schema, tags: Sequence[torch.Tag]) -> bool:
    """Return True if an op is pointwise and takes and returns tensors one by one."""
    is_simple = all(argument.type in ("Tensor", "Tensor?") for argument in schema.tensor_arguments)
    is_simple = is_simple and all(output.type == "Tensor" and output.alias_of is None for output in schema.outputs)
    return is_simple and torch.Tag.pointwise in tags and not schema.mutated_arguments


def _around(record: OpRecord, has_rows: bool, has_strategies: bool) -> Callable[..., Any]:
    """Return what runs calls with DTensors that strategies cannot say; NotImplemented for all others.

    Any: as the schema says.
    """
    choice, calls, bind = Choice(record), LocalCalls(record), Binder(record.declaration.schema)
    read = ResultReader(record.declaration, lambda _: "reference").read

    def around(*args: Any, **kwargs: Any) -> Any:
        if not placements.is_loaded():
            return NotImplemented
        placed = placed_in([*args, *kwargs.values()])
        if not placed:
            return NotImplemented
        assert record.overload is not None
        values = bind.arguments(*args, **kwargs)
        if has_rows:
            chosen = choice.of(values)
            is_combined = any(row.is_combined for row in chosen)
            is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in placed)
            is_local = is_combined or is_recorded or has_unknown_outputs(record, values)
            if has_strategies and not is_local:
                return NotImplemented
            return calls.run(chosen, *args, **kwargs)
        if placements.has_other_rule(record.overload):
            return NotImplemented
        if all(placement.is_replicate() for tensor in placed for placement in tensor.placements):
            row = replicated(record.declaration.schema, values)
            return calls.run([row] * placed[0].device_mesh.ndim, *args, **kwargs)
        reference = record.reference()
        if reference is None and is_tracing():  # a note on torch's error would be lost
            raise _unknown(record)
        if reference is None:
            return NotImplemented
        positional, keywords = bind.user_call(values)
        return read(reference(*positional, **keywords), values, None, is_checked=False)

    return around
