"""Local calls: the op and its whole backward on the tensors of each rank, above autograd.

redistribute, to_local             each input as its row says; the gradient of a replicated input is a sum over ranks
op                                 with its hidden outputs
combine                            only where a registered rule cuts the dimension
from_local                         each output as its row says
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from custom_autograd.calls.bind import Binder
from custom_autograd.capabilities.sharding.choice import mesh_of
from custom_autograd.capabilities.sharding.combined_calls import CombinedCalls
from custom_autograd.capabilities.sharding.rows import Row
from custom_autograd.capabilities.sharding.whole_shapes import WholeShapes
from custom_autograd.capabilities.sharding.wrapping import Wrapping, local_of
from custom_autograd.core.errors import KernelError
from custom_autograd.registration.one_tuple import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.placements import PARTIAL, REPLICATE
from custom_autograd.values.tensors import tensors_in

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
    ) -> Any:  # Any: as the schema says, here and below
        """Return the outputs of a call.

        Raises:
            KernelError: gradients would be lost.
        """
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
            raise KernelError(
                self._record.name,
                f"the op writes to '{written[0]}' on each rank, and gradients of DTensors would be lost",
                declared=self._record.declaration.location,
                do="call it under torch.no_grad(), or pass the tensors of the op by position, and not in results",
            )


def _grads(name: str, at: int, chosen: Sequence[Row]) -> list[Any]:
    """Return the placements of the gradient of an input: a sum over the ranks that had all of it."""
    placements = [row.inputs[name][at] for row in chosen]
    return [
        PARTIAL if one == REPLICATE and row.label is not None else one
        for one, row in zip(placements, chosen, strict=True)
    ]
