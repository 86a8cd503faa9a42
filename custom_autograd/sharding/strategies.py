"""Strategies: the placements of a call below autograd. A row is what one dimension of a mesh can hold.

torch's dispatcher of DTensors takes tensors by position and lists of them, and returns tensors. Calls of other ops run
on local tensors above autograd: see local_calls.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from custom_autograd.core.errors import KernelError
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.shapes.cuts import Cut, cut_of, cuts_of
from custom_autograd.shapes.described import DescribedOp, shapes_of
from custom_autograd.shapes.requirements import numbers_of
from custom_autograd.shapes.rule import described_op
from custom_autograd.sharding.combining import Combining, check_dimension
from custom_autograd.sharding.wrapping import Cost
from custom_autograd.torch_private.placements import PARTIAL, REPLICATE, Placement, Placements, Rule, torch_placements
from custom_autograd.values.tensors import placed_in, tensors_in

# Rows: what one dimension of a mesh can hold of each tensor of a call. Each unbracketed dimension of a line is a row.
#
# x: *b [d], weight: [d] -> out: *b [d]           x            weight       out
#                             b[0]                Shard(0)     Replicate    Shard(0)


Shape = Sequence[int]


@dataclass(frozen=True, slots=True)
class Row:
    """What one dimension of a mesh holds.

    Attributes:
        label: of the dimension that is cut; None if nothing is.
        inputs: by argument, the placement of each of its tensors.
        outputs: by output, the placement of its tensors.
        sizes: of the dimensions that are cut.
        is_even: the slices must have equal sizes.
        is_combined: a registered function combines the outputs.
    """

    label: str | None
    inputs: Mapping[str, tuple[Placement, ...]]
    outputs: Mapping[str, Placement]
    sizes: tuple[int, ...] = ()
    is_even: bool = False
    is_combined: bool = False

    def fits(self, parts: Sequence[int]) -> bool:
        """Return True if the sizes can be cut by some dimensions of a mesh, one after the other."""
        if self.is_even:
            return all(size % math.prod(parts) == 0 and size > 0 for size in self.sizes)
        return all(_is_full(size, parts) for size in self.sizes)


def _is_full(size: int, parts: Sequence[int]) -> bool:
    """Return True if no rank has an empty slice, which many ops cannot take."""
    if not parts:
        return size > 0
    slice_size = -(-size // parts[0])
    last = size - (parts[0] - 1) * slice_size
    return last > 0 and _is_full(slice_size, parts[1:]) and _is_full(last, parts[1:])


def replicated(schema: Schema, values: Mapping[str, Any]) -> Row:  # Any: tensors, or what has a shape
    """Return the row in which every rank has everything."""
    inputs = {one.name: (REPLICATE,) * len(shapes_of(values[one.name])) for one in schema.tensor_arguments}
    return Row(None, inputs, {output.name: REPLICATE for output in schema.fresh_outputs})


def of_line(described: DescribedOp, values: Mapping[str, Any]) -> Iterator[Row]:  # Any: as above
    """Yield a row for each unbracketed dimension of the line of a call."""
    shapes, sizes = described.shapes(values), described.sizes(values)
    line = sizes.line
    numbers = numbers_of(line, described.declaration.schema)
    for cut in cuts_of(line, shapes, sizes):
        if cut.name not in numbers:  # a slice would need another number
            yield of_cut(cut, shapes)


def of_cut(cut: Cut, shapes: Mapping[str, Sequence[Shape]], *, is_combined: bool = False) -> Row:
    """Return the row of one cut."""
    inputs = {
        name: tuple(REPLICATE if dim is None else dim for dim in cut.inputs.get(name, (None,) * len(found)))
        for name, found in shapes.items()
    }
    whole = REPLICATE if is_combined else PARTIAL
    outputs = {name: whole if dim is None else dim for name, dim in cut.outputs.items()}
    cut_sizes = [
        shape[dim]
        for name, found in shapes.items()
        for shape, dim in zip(found, inputs[name], strict=True)
        if isinstance(dim, int)
    ]
    sizes = [cut.size] if cut.is_product else cut_sizes  # not sets: symbolic sizes have no hash
    return Row(cut.label, inputs, outputs, tuple(sizes), cut.is_product, is_combined)


def of_pointwise(schema: Schema, values: Mapping[str, Any]) -> Iterator[Row]:  # Any: as above
    """Yield a row for each dimension of the result of a pointwise op, whose inputs are broadcast."""
    shapes = {one.name: shapes_of(values[one.name]) for one in schema.tensor_arguments}
    whole = torch.broadcast_shapes(*(shape for found in shapes.values() for shape in found))
    for dim, size in enumerate(whole):
        behind = dim - len(whole)  # counted from the last, as broadcasting does
        inputs = {name: tuple(_broadcast(shape, behind, size) for shape in found) for name, found in shapes.items()}
        outputs: dict[str, Placement] = {output.name: dim for output in schema.outputs}
        yield Row(f"dimension {dim}", inputs, outputs, (size,))


def _broadcast(shape: Shape, behind: int, size: int) -> Placement:
    dim = len(shape) + behind
    return dim if dim >= 0 and shape[dim] == size else REPLICATE


def has_unknown_outputs(record: OpRecord, values: Mapping[str, Any]) -> bool:  # Any: tensors, or what has a shape
    """Return True if the shape of an output depends on data: torch's dispatcher of DTensors has to know it before."""
    described = described_op(record)
    return described is not None and any(
        not dim.factors for item in described.line(values).outputs for dim in item.dims
    )


def rows_of(record: OpRecord, values: Mapping[str, Any]) -> Iterator[Row]:  # Any: as above
    """Yield the rows of a call, from its line or its tag."""
    schema = record.declaration.schema
    yield replicated(schema, values)
    described = described_op(record)
    if described is not None:
        yield from of_line(described, values)
    else:
        yield from of_pointwise(schema, values)


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
    return record.declaration.error(
        KernelError,
        f"the op writes to '{written.name}', whose placements it cannot keep",
        expected="Replicate, or cut along a dimension that the line has without brackets",
        found=str(tensor.placements),
        rule=None if described is None else described.rule.where,
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


Values = Mapping[str, Any]  # Any: arguments by name


class PlacementChoice:
    """Chooses the rows of calls of one op."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._schema = record.declaration.schema

    def of(self, values: Values) -> tuple[Row, ...]:
        """Return the row of each dimension of the mesh, so that as little as possible is sent."""
        mesh = mesh_of(self._record, values)
        found = [*rows_of(self._record, values), *self._combined(values)]
        chosen: list[Row] = []
        for dim in range(mesh.ndim):
            sizes = [mesh.size(one) for one in range(dim + 1)]
            if any(row.is_combined for row in chosen):  # a rule knows the slices of one dimension of the mesh
                found = [row for row in found if not row.is_combined]
            possible = [row for row in found if fit([*chosen, row], sizes) and self._keeps_written(values, row, dim)]
            if not possible:
                raise moved(self._record, values)
            chosen.append(min(possible, key=lambda row: self._cost(values, row, dim)))
        return tuple(chosen)

    def _combined(self, values: Values) -> Iterator[Row]:
        """Yield the rows that are cut by rules."""
        described = described_op(self._record)
        rules = self._record.registrations.all_of(Combining)
        if described is None or not rules:
            return
        shapes, sizes = described.shapes(values), described.sizes(values)
        line = sizes.line
        for rule in rules:
            if rule.dim in line.along and rule.dim in sizes:
                check_dimension(self._record, line, rule.dim, rule.location)
                yield of_cut(cut_of(line, shapes, sizes, rule.dim), shapes, is_combined=True)

    def _keeps_written(self, values: Values, row: Row, dim: int) -> bool:
        written = [argument.name for argument in self._schema.mutated_arguments]
        return all(
            (tensor.placements[dim],) == torch_placements([placement])
            for name in written
            for tensor, placement in zip(cast("list[Any]", tensors_in([values[name]])), row.inputs[name], strict=True)
        )

    def _cost(self, values: Values, row: Row, dim: int) -> Cost:
        sent = sum(
            Cost.of(tensor, torch_placements([placement])[0], dim)
            for name, placements in row.inputs.items()
            for tensor, placement in zip(tensors_in([values[name]]), placements, strict=True)
        )
        return Cost(sent, row.is_combined, row.label is not None)


def mesh_of(record: OpRecord, values: Values) -> Any:
    """Return the mesh of the DTensors of a call."""
    (first, tensor), *others = [(name, one) for name, value in values.items() for one in placed_in([value])]
    for name, other in others:
        if other.device_mesh != tensor.device_mesh:
            raise record.declaration.error(
                KernelError,
                f"'{first}' and '{name}' are on two meshes",
                expected=f"{tensor.device_mesh}, the mesh of '{first}'",
                found=f"{other.device_mesh}",
                do="distribute them over one mesh",
            )
    return tensor.device_mesh
