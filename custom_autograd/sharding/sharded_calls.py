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

from custom_autograd.execution.composition import derivable_reference
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord, all_records
from custom_autograd.schema.schema import Schema
from custom_autograd.shapes.rule import described_op
from custom_autograd.torch_private import placements
from custom_autograd.values.tensors import placed_in
from custom_autograd.values.user_code import add_note

NO_STRATEGY = "does not have a sharding strategy registered"


class ShardingCapability(Capability):
    """Placements of DTensors."""

    name = "sharding"

    def attach(self, record: OpRecord) -> None:
        """Register strategies, or what runs calls on local tensors."""
        schema = record.declaration.schema
        has_rows, has_strategies = _has_rows(record), _has_strategies(record)
        if placements.is_loaded():
            _register(record)
        takes_tensors = bool(schema.tensor_arguments) and record.declaration.composition is None and not schema.is_view
        record.road.around_autograd = _around(record, has_rows, has_strategies) if takes_tensors else None

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Say what registers the placements of an op, if torch does not know them."""
        if f"Operator {record.overload} {NO_STRATEGY}" in str(error):
            add_note(error, f"{record.name}, declared at {record.declaration.location}: {advice(record)}")
        return False

    def describe(self, record: OpRecord) -> str:
        """Return where the placements of DTensors come from."""
        return f"{_source(record)}{_rules(record)}"


def _register(record: OpRecord) -> None:
    """Register the strategies of an op with torch, or take them back."""
    overloads = [one for one in (record.overload, record.definition.output) if one is not None]
    if not _has_strategies(record):
        for overload in overloads:
            placements.withdraw(overload)
        return
    from custom_autograd.sharding.strategies import key_of, rule_of  # only lines need it

    first, names = key_of(record)
    for overload in overloads:
        placements.register(overload, rule_of(record), first, names)


def _register_all() -> None:
    """Register the strategies of all ops that were declared before the program could make a DTensor."""
    for record in all_records():
        _register(record)


placements.when_imported(_register_all)


def _source(record: OpRecord) -> str:
    described = described_op(record)
    if described is not None:
        return f"derived from the line of shapes ({described.rule.location})"
    if _is_pointwise(record.declaration.schema, record.declaration.tags):
        return "derived: pointwise, as its output is sharded"
    if derivable_reference(record) is not None:
        return f"derived from the reference ({record.reference_location}), which runs on the DTensors"
    return "missing: shapes=, register_shapes"


def _rules(record: OpRecord) -> str:
    from custom_autograd.sharding.combining import Combining  # loaded for ops that have such rules

    rules = record.registrations.all_of(Combining)
    return "".join(f"; '{rule.dim}' registered ({rule.location})" for rule in rules)


def _has_rows(record: OpRecord) -> bool:
    return described_op(record) is not None or _is_pointwise(record.declaration.schema, record.declaration.tags)


def _has_strategies(record: OpRecord) -> bool:
    return _has_rows(record) and can_have_strategies(record.declaration.schema)


def _is_pointwise(schema: Schema, tags: Sequence[torch.Tag]) -> bool:
    """Return True if an op is pointwise and takes and returns tensors one by one."""
    if torch.Tag.pointwise not in tags or schema.mutated_arguments:
        return False
    is_simple = all(argument.type in ("Tensor", "Tensor?") for argument in schema.tensor_arguments)
    return is_simple and all(output.type == "Tensor" and output.alias_of is None for output in schema.outputs)


def can_have_strategies(schema: Schema) -> bool:
    """Return True if torch's dispatcher of DTensors can call the op with what strategies say."""
    by_keyword = any(argument.is_keyword_only for argument in schema.tensor_arguments)  # they are not redistributed
    has_lists = any(output.is_tensor_list for output in schema.outputs)
    is_keyed = not any(
        argument.type.startswith(("Scalar", "Scalar?")) and "Type" not in argument.type for argument in schema.arguments
    )  # torch 2.11 has one key for 2 and 2.0
    return bool(schema.tensor_arguments) and not by_keyword and not has_lists and is_keyed


def _around(record: OpRecord, has_rows: bool, has_strategies: bool) -> Callable[..., Any]:
    """Return what runs calls with DTensors that strategies cannot say; NotImplemented for all others.

    Any: as the schema declares.
    """

    def around(*args: Any, **kwargs: Any) -> Any:
        if not placements.is_loaded():
            return NotImplemented
        placed = placed_in([*args, *kwargs.values()])
        if not placed:
            return NotImplemented
        from custom_autograd.sharding.local_calls import run  # only DTensors need it

        return run(record, has_rows, has_strategies, placed, *args, **kwargs)

    return around


def advice(record: OpRecord) -> str:
    """Return what the author of an op can do."""
    namespace, name = str(record.definition.name).split("::")
    return (
        "its placements follow from a line of shapes: custom_op(..., shapes=...) or register_shapes; or write them by "
        f"hand with torch.distributed.tensor.experimental.register_sharding(torch.ops.{namespace}.{name}.default)"
    )
