"""Calls that a registered rule cuts: each rank runs the op on its slice, and the rule combines the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_autograd.calls.bind import Binder
from custom_autograd.capabilities.sharding.combining import Combining
from custom_autograd.capabilities.sharding.rows import Row
from custom_autograd.capabilities.sharding.whole_shapes import WholeShapes
from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import show
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.lookup import described_op
from custom_autograd.torch_private.collectives import stack_of_ranks

Values = Mapping[str, Any]  # Any: arguments or outputs by name


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
        """Return the combined outputs by name.

        Args:
            rule: combines them.
            values: the whole arguments.
            local: those of this rank.
            mesh: of the ranks (Any: DeviceMesh).
            dim: of the mesh, along which the slices are.

        Raises:
            KernelError: the rule returns something else.
        """
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
