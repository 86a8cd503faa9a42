"""Strategies: the placements of a call below autograd, as torch's own ops have them; torch redistributes and wraps.

torch's dispatcher of DTensors takes tensors by position and lists of them, and returns tensors. Calls of other ops run
on local tensors above autograd: see local_calls.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from custom_autograd.calls.bind import Binder
from custom_autograd.capabilities.sharding import rows
from custom_autograd.capabilities.sharding.rows import Row
from custom_autograd.core.errors import KernelError
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.lookup import described_op
from custom_autograd.torch_private.placements import Placement, Placements, Rule, torch_placements

RowsOf: TypeAlias = Callable[[OpRecord, Mapping[str, Any]], Iterable[Row]]
"""(op, arguments by name) -> the rows of a call (Any: tensors, or what has a shape)."""


def has_unknown_outputs(record: OpRecord, values: Mapping[str, Any]) -> bool:  # Any: tensors, or what has a shape
    """Return True if the shape of an output depends on data: torch's dispatcher of DTensors has to know it before."""
    described = described_op(record)
    return described is not None and any(
        not dim.factors for item in described.line(values).outputs for dim in item.dims
    )


def rows_of(record: OpRecord, values: Mapping[str, Any]) -> Iterator[Row]:  # Any: as above
    """Yield the rows of a call, from its line or its tag."""
    schema = record.declaration.schema
    yield rows.replicated(schema, values)
    described = described_op(record)
    if described is not None:
        yield from rows.of_line(described, values)
    else:
        yield from rows.of_pointwise(schema, values)


def rule_of(record: OpRecord) -> Rule:
    """Return what torch calls for the choices of a call."""
    schema = record.declaration.schema
    bind = Binder(schema)

    def choices(args: Sequence[Any], kwargs: dict[str, Any], mesh: Sequence[int]) -> list[Sequence[Placements]]:
        values = bind.arguments(*args, **kwargs)
        found = [
            combination
            for combination in itertools.product(rows_of(record, values), repeat=len(mesh))
            if fit(combination, mesh) and _keeps_written(schema, values, combination)
        ]
        if not found:
            raise moved(record, values)
        return [[_flat(schema, row, values) for row in combination] for combination in found]

    return choices


def fit(combination: Sequence[Row], mesh: Sequence[int]) -> bool:
    """Return True if every size can be cut by all dimensions of the mesh that cut it."""
    for row in {row.label: row for row in combination}.values():
        parts = [size for one, size in zip(combination, mesh, strict=True) if one.label == row.label]
        if row.label is not None and not row.fits(parts):
            return False
    return True


def _keeps_written(schema: Schema, values: Mapping[str, Any], combination: Sequence[Row]) -> bool:
    """Return True if the tensors that the op writes to stay where they are."""
    for argument in schema.mutated_arguments:
        for at, tensor in enumerate(tensors_of(values[argument.name])):
            if tensor.placements != torch_placements(row.inputs[argument.name][at] for row in combination):
                return False
    return True


def moved(record: OpRecord, values: Mapping[str, Any]) -> KernelError:
    """Return the error of a call that would have to redistribute a tensor that it writes to."""
    written = record.declaration.schema.mutated_arguments[0]
    tensor = tensors_of(values[written.name])[0]
    described = described_op(record)
    return KernelError(
        record.name,
        f"the op writes to '{written.name}', whose placements it cannot keep",
        expected="Replicate, or cut along a dimension that the line has without brackets",
        found=str(tensor.placements),
        rule=None if described is None else described.rule.where,
        declared=record.declaration.location,
        do=f"redistribute '{written.name}' before the call",
    )


def tensors_of(value: Any) -> list[Any]:  # Any: a DTensor or what stands for it, a list of those, or None
    """Return the tensors of one argument."""
    if value is None:
        return []
    return [one for one in value if one is not None] if isinstance(value, list) else [value]


def _flat(schema: Schema, row: Row, values: Mapping[str, Any]) -> Placements:
    """Return the placements of a row by position."""
    inputs = [placement for argument in schema.tensor_arguments for placement in row.inputs[argument.name]]
    return inputs, [_output(schema, row, output.name, output.alias_of, output.is_view) for output in schema.outputs]


def _output(schema: Schema, row: Row, name: str, alias_of: str | None, is_view: bool) -> Placement:
    return row.inputs[alias_of][0] if alias_of is not None and not is_view else row.outputs[name]


def key_of(record: OpRecord) -> tuple[int, tuple[str, ...]]:
    """Return which arguments decide on the placements besides tensors: from a position on, and by name.

    A float that changes from step to step would fill the cache. It is left out where no rule names it, and nothing that
    decides stands before it: torch knows a first position only.
    """
    schema, described = record.declaration.schema, described_op(record)
    named = frozenset[str]() if described is None else frozenset(described.rule.names)
    deciding = [argument.name for argument in schema.arguments if _decides(argument, named)]
    positional = [argument.name for argument in schema.arguments if not argument.is_keyword_only]
    first = next((at for at, name in enumerate(positional) if name in deciding), len(positional))
    return first, tuple(a.name for a in schema.arguments if a.is_keyword_only and a.name in deciding)


def _decides(argument: Argument, named: frozenset[str]) -> bool:
    is_float = argument.type.startswith("float")
    return not argument.holds_tensors and (not is_float or argument.name in named)
