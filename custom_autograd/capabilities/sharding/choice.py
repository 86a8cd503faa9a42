"""The choice of placements for a call on local tensors: what sends least, one dimension of the mesh after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from custom_autograd.capabilities.sharding import rows
from custom_autograd.capabilities.sharding.combining import Combining, check_dimension
from custom_autograd.capabilities.sharding.rows import Row
from custom_autograd.capabilities.sharding.strategies import fit, moved, rows_of
from custom_autograd.capabilities.sharding.wrapping import Cost
from custom_autograd.core.errors import KernelError
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.cuts import cut_of
from custom_autograd.shapes.lookup import described_op
from custom_autograd.torch_private.placements import torch_placements
from custom_autograd.values.tensors import placed_in, tensors_in

Values = Mapping[str, Any]  # Any: arguments by name


class Choice:
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
                yield rows.of_cut(cut_of(line, shapes, sizes, rule.dim), shapes, is_combined=True)

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
    """Return the mesh of the DTensors of a call.

    Raises:
        KernelError: there are two.
    """
    (first, tensor), *others = [(name, one) for name, value in values.items() for one in placed_in([value])]
    for name, other in others:
        if other.device_mesh != tensor.device_mesh:
            raise KernelError(
                record.name,
                f"'{first}' and '{name}' are on two meshes",
                expected=f"{tensor.device_mesh}, the mesh of '{first}'",
                found=f"{other.device_mesh}",
                declared=record.declaration.location,
                do="distribute them over one mesh",
            )
    return tensor.device_mesh
