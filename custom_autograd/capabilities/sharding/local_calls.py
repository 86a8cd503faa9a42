"""Local calls: the op and its whole backward on the tensors of each rank, above autograd.

redistribute, to_local             each input as its row says; the gradient of a replicated input is a sum over ranks
op                                 with its hidden outputs
combine                            only where a registered rule cuts the dimension
from_local                         each output as its row says
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from custom_autograd.calls.bind import Binder
from custom_autograd.capabilities.sharding import rows
from custom_autograd.capabilities.sharding.combining import Combining, check_dimension
from custom_autograd.capabilities.sharding.rows import Row
from custom_autograd.capabilities.sharding.strategies import fit, moved, rows_of
from custom_autograd.capabilities.sharding.whole_shapes import WholeShapes
from custom_autograd.capabilities.sharding.wrapping import Cost, Wrapping, local_of
from custom_autograd.core.errors import KernelError
from custom_autograd.registration.one_tuple import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.cuts import cut_of
from custom_autograd.shapes.described import described_op
from custom_autograd.torch_private.collectives import stack_of_ranks
from custom_autograd.torch_private.placements import PARTIAL, REPLICATE, is_placed, torch_placements
from custom_autograd.values.tensors import tensors_in

Values = Mapping[str, Any]  # Any: arguments or outputs by name


@dataclass(frozen=True, slots=True)
class Slice:
    """What a rank has of a dimension that a rule cuts."""

    group: Any  # a ProcessGroup
    index: int
    count: int
    start: int
    size: int


class LocalCalls:
    """Runs the calls of one op on local tensors."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._schema = record.declaration.schema
        self._bind = Binder(self._schema)
        self._whole = WholeShapes(record)

    def choose(self, values: Values) -> tuple[Row, ...]:
        """Return the row of each dimension of the mesh, so that as little as possible is sent."""
        mesh = self._mesh(values)
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

    def run(self, chosen: Sequence[Row], *args: Any, **kwargs: Any) -> Any:  # Any: as the schema says, here and below
        """Return the outputs of a call.

        Raises:
            KernelError: gradients would be lost.
        """
        values = self._bind.raw(*args, **kwargs)
        self._refuse_lost_gradients(values)
        mesh = self._mesh(values)
        local = {name: self._local(name, value, chosen) for name, value in values.items()}
        rule, dim = next(((r, at) for at, row in enumerate(chosen) if (r := self._rule(row))), (None, 0))
        if rule is None:
            made = self._call(local)
        else:
            part = self._slice(values, rule, mesh, dim)
            made = self._combine(rule, part, local)
        return self._wrapped(made, chosen, values, mesh)

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

    def _rule(self, row: Row) -> Combining | None:
        rules = self._record.registrations.all_of(Combining) if row.is_combined else ()
        return next((rule for rule in rules if rule.dim == row.label), None)

    def _mesh(self, values: Values) -> Any:
        (first, tensor), *others = [(name, one) for name, value in values.items() for one in placed_in([value])]
        for name, other in others:
            if other.device_mesh != tensor.device_mesh:
                raise KernelError(
                    self._record.name,
                    f"'{first}' and '{name}' are on two meshes",
                    expected=f"{tensor.device_mesh}, the mesh of '{first}'",
                    found=f"{other.device_mesh}",
                    declared=self._record.declaration.location,
                    do="distribute them over one mesh",
                )
        return tensor.device_mesh

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

    def _local(self, name: str, value: Any, chosen: Sequence[Row]) -> Any:
        tensors = tensors_in([value])
        if name not in chosen[0].inputs or not tensors:
            return value
        made = [
            local_of(self._record, tensor, [row.inputs[name][at] for row in chosen], _grads(name, at, chosen))
            for at, tensor in enumerate(tensors)
        ]
        if not isinstance(value, (list, tuple)):
            return made[0]
        remaining = iter(made)
        return [None if one is None else next(remaining) for one in value]

    def _call(self, local: Values) -> dict[str, Any]:
        """Return the outputs of this rank by name."""
        positional, keywords = self._bind.call(local)
        result = opened(self._record)(*positional, **keywords)
        names = [output.name for output in self._schema.outputs]
        return dict(zip(names, [result] if len(names) == 1 else result or (), strict=True))

    def _slice(self, values: Values, rule: Combining, mesh: Any, dim: int) -> Slice:
        described = described_op(self._record)
        assert described is not None  # a rule needs a line
        size = described.sizes(self._bind.converted(values)).count(rule.dim)
        count, index = mesh.size(dim), mesh.get_local_rank(dim)
        return Slice(mesh.get_group(dim), index, count, min(index * -(-size // count), size), size)

    def _combine(self, rule: Combining, part: Slice, local: dict[str, Any]) -> dict[str, Any]:
        special = {"group": part.group, "index": part.index, "count": part.count, "start": part.start}
        special |= {"size": part.size, "gather": partial(stack_of_ranks, part.group)}
        given = {**local, **special}
        own = {} if rule.arguments is None else rule.arguments(**{name: given[name] for name in rule.taken})
        made = self._call({**local, **own})
        combined = rule.function(**{name: {**given, **made}[name] for name in rule.names})
        found = self._named(rule, combined)
        return {name: found[name] if name in found else _unknown(tensor) for name, tensor in made.items()}

    def _named(self, rule: Combining, combined: Any) -> dict[str, Any]:
        """Return what a rule returned by name."""
        visible = [output.name for output in self._schema.outputs if not output.is_hidden]
        hidden = [output.name for output in self._schema.outputs if output.is_hidden]
        if isinstance(combined, Mapping):
            found = dict(combined)
        else:
            values = list(combined) if isinstance(combined, (tuple, list)) else [combined]
            found = dict(zip(visible, values, strict=False))
        missing = [name for name in visible if not isinstance(found.get(name), Tensor)]
        if missing or not set(found) <= {*visible, *hidden}:
            raise self._record.declaration.origin(rule.where).error(
                KernelError,
                "the sharding rule does not return the outputs of the op",
                expected=f"{', '.join(visible)}, in order or by name",
                found=", ".join(found) or "nothing",
            )
        return found

    def _wrapped(self, made: Values, chosen: Sequence[Row], values: Values, mesh: Any) -> Any:
        outputs, users = [], self._bind.converted(values)
        for output in self._schema.outputs:
            if output.alias_of is not None and not output.is_view:
                outputs.append(values[output.alias_of])
                continue
            placements = [row.outputs[output.name] for row in chosen]
            divisor = math.prod(
                mesh.size(dim) for dim, row in enumerate(chosen) if row.is_combined and placements[dim] == REPLICATE
            )
            second = [
                PARTIAL if row.is_combined and placement == REPLICATE else placement
                for row, placement in zip(chosen, placements, strict=True)
            ]
            whole = partial(self._whole.shape_of, users, output.name)
            wrapping = Wrapping(mesh, placements, divisor, second, whole)
            outputs.append(wrapping.around(made[output.name]))
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _refuse_lost_gradients(self, values: Values) -> None:
        written = [argument.name for argument in self._schema.mutated_arguments]
        tensors = [tensor for value in values.values() for tensor in tensors_in([value])]
        if written and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise KernelError(
                self._record.name,
                f"the op writes to '{written[0]}' on each rank, and gradients of DTensors would be lost",
                declared=self._record.declaration.location,
                do="call it under torch.no_grad(), or pass the tensors of the op by position, and not in results",
            )


def _unknown(tensor: Tensor) -> Tensor:
    """Return what stands for a hidden output that a rule does not return: NaN, or -1 in place of integers."""
    return torch.full_like(tensor, math.nan if tensor.is_floating_point() else -1)


def _grads(name: str, at: int, chosen: Sequence[Row]) -> list[Any]:
    """Return the placements of the gradient of an input: a sum over the ranks that had all of it."""
    placements = [row.inputs[name][at] for row in chosen]
    return [
        PARTIAL if one == REPLICATE and row.label is not None else one
        for one, row in zip(placements, chosen, strict=True)
    ]


def placed_in(values: Iterable[Any]) -> list[Any]:
    """Return the DTensors among the arguments of a call."""
    return [tensor for tensor in tensors_in(list(values)) if is_placed(tensor)]
