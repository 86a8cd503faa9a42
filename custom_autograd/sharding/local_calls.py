"""Calls of an op with DTensors, above autograd: which way they run; and the op on the tensors of each rank.

On local tensors the op runs with its whole backward, whole or cut by a registered rule:

redistribute, to_local             each input as its row says; the gradient of a replicated input is a sum over ranks
op                                 with its hidden outputs
combine                            only where a registered rule cuts the dimension
from_local                         each output as its row says
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import show
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.composition import derivable_reference, hold_back, hold_back_results
from custom_autograd.registration.dispatcher_library import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import DescribedOp, shapes_of
from custom_autograd.shapes.notation import Dim
from custom_autograd.shapes.rule import described_op
from custom_autograd.shapes.unification import Sizes
from custom_autograd.sharding.combining import Combining
from custom_autograd.sharding.sharded_calls import advice
from custom_autograd.sharding.strategies import PlacementChoice, Row, has_unknown_outputs, mesh_of, replicated
from custom_autograd.sharding.wrapping import Wrapping, local_of
from custom_autograd.torch_private.collectives import stack_of_ranks
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.torch_private.placements import PARTIAL, REPLICATE, has_other_rule
from custom_autograd.values.kernel_results import ResultReader
from custom_autograd.values.tensors import tensors_in


def run(
    record: OpRecord, has_rows: bool, has_strategies: bool, placed: Sequence[Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Return what a call gives (Any: as the schema declares); NotImplemented if torch's dispatcher is to run it."""
    schema = record.declaration.schema
    bind, calls = Binder(schema), LocalCalls(record)
    values = bind.arguments(*args, **kwargs)
    if has_rows:
        chosen = PlacementChoice(record).of(values)
        is_combined = any(row.is_combined for row in chosen)
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in placed)
        is_local = is_combined or is_recorded or has_unknown_outputs(record, values)
        return calls.run(chosen, *args, **kwargs) if is_local or not has_strategies else NotImplemented
    assert record.overload is not None
    if has_other_rule(record.overload):
        return NotImplemented
    if all(placement.is_replicate() for tensor in placed for placement in tensor.placements):
        return calls.run([replicated(schema, values)] * placed[0].device_mesh.ndim, *args, **kwargs)
    return _by_reference(record, bind, values)


def _by_reference(record: OpRecord, bind: Binder, values: dict[str, Any]) -> Any:
    reference = derivable_reference(record)
    if reference is None and is_tracing():  # a note on torch's error would be lost
        raise record.declaration.error(
            KernelError,
            "the op meets a DTensor that is not replicated, and nothing declares how the op is sharded",
            do=advice(record),
        )
    if reference is None:
        return NotImplemented
    positional, keywords = bind.user_call(hold_back(record, values))
    reader = ResultReader(record.declaration, lambda _: "reference")
    found = reader.read(reference(*positional, **keywords), values, None, is_checked=False)
    return hold_back_results(record, found)


class WholeShapes:
    """The shapes of the outputs of one op.

    Args:
        record: the op.
    """

    def __init__(self, record: OpRecord) -> None:
        self._record = record

    def shape_of(self, values: Mapping[str, Any], name: str, place: int, local: Tensor) -> Sequence[int]:
        """Return the shape of an output."""
        described = described_op(self._record)
        if described is not None:
            return _of_line(described, values, name, place, local)
        if torch.Tag.pointwise not in self._record.declaration.tags:
            return local.shape  # nothing is cut
        tensors = [values[argument.name] for argument in self._record.declaration.schema.tensor_arguments]
        return tuple(torch.broadcast_shapes(*(shape for value in tensors for shape in shapes_of(value))))


def _of_line(described: DescribedOp, values: Mapping[str, Any], name: str, place: int, local: Tensor) -> Sequence[int]:
    sizes = described.sizes(values)
    item = next(item for item in described.line(values).outputs if item.name == name)
    shape: list[int] = []
    for dim in item.dims:
        if dim.factors and dim.is_many:
            group = sizes.at(dim.names[0], place)
            assert isinstance(group, tuple)
            shape += group
        elif dim.factors:
            shape.append(sizes.size_of(dim, place))
        else:  # a dimension that the line does not describe is not cut
            count = local.ndim - _described_dims(item.dims, sizes, place) if dim.is_many else 1
            shape += local.shape[len(shape) : len(shape) + count]
    return shape


def _described_dims(dims: Sequence[Dim], sizes: Sizes, place: int) -> int:
    """Return the number of dimensions in addition to those that `...` stands for."""
    groups = [sizes.at(dim.names[0], place) for dim in dims if dim.is_many and dim.factors]
    return sum(len(group) for group in groups if isinstance(group, tuple)) + sum(not dim.is_many for dim in dims)


class CombinedCalls:
    """Runs the calls of one op that a rule cuts.

    Args:
        record: the op.
        call: (arguments of this rank by name) -> its outputs by name.
    """

    def __init__(self, record: OpRecord, call: Callable[[Values], dict[str, Any]]) -> None:
        self._record, self._call = record, call
        self._schema = record.declaration.schema
        self._bind, self._shapes = Binder(self._schema), WholeShapes(record)

    def rule_of(self, row: Row) -> Combining | None:
        """Return the rule by which a row is cut; None if it needs none."""
        rules = self._record.registrations.all_of(Combining) if row.is_combined else ()
        return next((rule for rule in rules if rule.dim == row.label), None)

    def run(self, rule: Combining, values: Values, local: Values, mesh: Any, dim: int) -> dict[str, Any]:
        """Return the combined outputs by name."""
        special = self._special(values, rule, mesh, dim)
        given = {**local, **special}
        own = {} if rule.arguments is None else rule.arguments(**{name: given[name] for name in rule.taken})
        made = self._call({**local, **own})
        combined = rule.function(**{name: {**given, **made}[name] for name in rule.names})
        found = self._named(rule, combined)
        for name, tensor in found.items():
            self._require_like(rule, name, tensor, self._shapes.shape_of(self._bind.converted(local), name, 0, tensor))
        return {name: found[name] if name in found else _unknown(tensor) for name, tensor in made.items()}

    def _special(self, values: Values, rule: Combining, mesh: Any, dim: int) -> dict[str, Any]:
        """Return what SPECIAL lists, for this rank."""
        described = described_op(self._record)
        assert described is not None  # a rule needs a line
        size = described.sizes(self._bind.converted(values)).count(rule.dim)
        count, index, group = mesh.size(dim), mesh.get_local_rank(dim), mesh.get_group(dim)
        return {
            "gather": partial(stack_of_ranks, group),
            "group": group,
            "index": index,
            "count": count,
            "start": index * -(-size // count),  # no slice is empty
            "size": size,
        }

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

    def _require_like(self, rule: Combining, name: str, tensor: Tensor, shape: Sequence[int]) -> None:
        """Raise if an output does not have the size of this rank's slice of it."""
        if tuple(tensor.shape) != tuple(shape):
            raise self._record.declaration.origin(rule.where).error(
                KernelError,
                f"the sharding rule returns '{name}' with the wrong size",
                expected=f"{show(tuple(shape))}, the size on this rank if '{rule.dim}' is cut",
                found=show(tuple(tensor.shape)),
            )


def _unknown(tensor: Tensor) -> Tensor:
    """Return what stands for a hidden output that a rule does not return: NaN, or -1 in place of integers."""
    return torch.full_like(tensor, math.nan if tensor.is_floating_point() else -1)


Values = Mapping[str, Any]  # Any: arguments or outputs by name


class LocalCalls:
    """Runs the calls of one op on local tensors, which are cut as a Choice says."""

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._schema = record.declaration.schema
        self._bind = Binder(self._schema)
        self._whole = WholeShapes(record)
        self._combined = CombinedCalls(record, self._call)

    def run(
        self, chosen: Sequence[Row], /, *args: Any, **kwargs: Any
    ) -> Any:  # Any: as the schema declares, here and below
        """Return the outputs of a call."""
        values = self._bind.raw(*args, **kwargs)
        self._refuse_lost_gradients(values)
        mesh = mesh_of(self._record, values)
        local = {name: self._local(name, value, chosen) for name, value in values.items()}
        rules = map(self._combined.rule_of, chosen)
        rule, dim = next(((rule, dim) for dim, rule in enumerate(rules) if rule is not None), (None, 0))
        made = self._call(local) if rule is None else self._combined.run(rule, values, local, mesh, dim)
        return self._wrapped(made, chosen, values, mesh)

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
            raise self._record.declaration.error(
                KernelError,
                f"the op writes to '{written[0]}' on each rank, and gradients of DTensors would be lost",
                do="call it under torch.no_grad(), or pass the tensors of the op by position, and not in results",
            )


def _grads(name: str, at: int, chosen: Sequence[Row]) -> list[Any]:
    """Return the placements of the gradient of an input: a sum over the ranks that had all of it."""
    placements = [row.inputs[name][at] for row in chosen]
    return [
        PARTIAL if one == REPLICATE and row.label is not None else one
        for one, row in zip(placements, chosen, strict=True)
    ]
