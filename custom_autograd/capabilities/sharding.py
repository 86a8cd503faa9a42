"""DTensor: a pointwise op is sharded as its output is, dimension by dimension; learnt when it first meets a DTensor.

`torch.distributed.tensor` takes half a second to import, and only who has made a DTensor has imported it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.user_code import add_note

NO_STRATEGY = "does not have a sharding strategy registered"
ADVICE = (
    "torch.distributed.tensor.experimental.register_sharding(torch.ops.{}.{}.default) says which placements of the "
    "outputs follow from those of the inputs"
)


class Sharding(Capability):
    """Placements of a pointwise op, learnt when it first meets a DTensor."""

    name = "sharding"

    def explain(self, record: OpRecord, error: Exception, values: Sequence[Any]) -> bool:
        """Register how a pointwise op is sharded, or say what registers it, if torch does not know."""
        if f"Operator {record.overload} {NO_STRATEGY}" not in str(error) or self.name in record.attached:
            return False
        if not _is_shardable(record):
            advice = ADVICE.format(*str(record.dispatcher_name).split("::"))
            add_note(error, f"{record.name}, declared at {record.declaration.location}: {advice}")
            return False
        from torch.distributed.tensor import Replicate, Shard  # loaded by whoever made the DTensor
        from torch.distributed.tensor.experimental import register_sharding

        assert record.overload is not None
        outputs = len(record.declaration.schema.outputs)
        register_sharding(record.overload)(_rule(outputs, Replicate(), lambda dim: Shard(dim)))
        record.attached.add(self.name)
        return True

    def describe(self, record: OpRecord) -> str:
        """Return where the placements of DTensors come from."""
        if _is_shardable(record):
            return "derived: pointwise, as its output is sharded"
        return "missing: torch.distributed.tensor.experimental.register_sharding"


def _is_shardable(record: OpRecord) -> bool:
    """Return True if an op is pointwise and takes and returns tensors one by one."""
    schema = record.declaration.schema
    is_simple = all(a.type in ("Tensor", "Tensor?") and not a.is_keyword_only for a in schema.tensor_arguments)
    is_simple = is_simple and all(o.type == "Tensor" and o.alias_of is None for o in schema.outputs)
    return is_simple and torch.Tag.pointwise in record.declaration.tags and not schema.mutated_arguments


def _rule(outputs: int, replicate: object, shard: Callable[[int], object]) -> Callable[..., Any]:
    """Return what `register_sharding` takes (Any: specs of tensors, and placements, which are classes of torch's)."""

    def placements(*args: Any, **kwargs: Any) -> list[tuple[list[Any], list[Any]]]:
        specs = [arg for arg in args if hasattr(arg, "placements")]
        sizes = torch.broadcast_shapes(*(spec.shape for spec in specs))
        found = [([replicate] * outputs, [replicate] * len(specs))]
        for dim, size in enumerate(sizes):
            behind = dim - len(sizes)  # counted from the last, as broadcasting does
            inputs = [
                shard(spec.ndim + behind) if spec.ndim + behind >= 0 and spec.shape[behind] == size else replicate
                for spec in specs
            ]
            found.append(([shard(dim)] * outputs, inputs))
        return found

    return placements
