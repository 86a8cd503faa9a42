"""vmap that follows from a line: the batch is one more dimension in front of `*b`, and the op is called once.

It does so if every output, and every input with a batch, begins with the same group `*b`, which is not in brackets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from custom_autograd.registration.declaration import Declaration
from custom_autograd.shapes.notation import Item, Line

Values = Mapping[str, Any]  # Any: the arguments of a call; dimensions of a batch, in the same structure


def can_be_batched(declaration: Declaration) -> bool:
    """Return True if a line may say how an op is batched: it returns new tensors, and draws no random numbers."""
    schema = declaration.schema
    is_random = schema.has_generator or torch.Tag.nondeterministic_seeded in declaration.tags
    is_plain = all(output.type == "Tensor" and output.alias_of is None for output in schema.outputs)
    return is_plain and bool(schema.outputs) and not is_random and not schema.mutated_arguments


def group_of_batch(line: Line, dims: Values) -> str | None:
    """Return the group in front of which the batch goes, or None if there is none.

    Args:
        line: of the call.
        dims: by argument, the dimension of its batch, or those of a list; None for one without.
    """
    batched = [item for item in line.inputs if _is_batched(dims[item.name])]
    groups = {_leading(item) for item in (*batched, *line.outputs)}
    group = groups.pop() if len(groups) == 1 else None
    is_inside = any(dim.name == group for item in line.inputs for dim in item.dims[1:])
    return None if group in line.along or is_inside else group


def with_batch_in_front(line: Line, group: str, values: Values, dims: Values, size: int) -> dict[str, Any]:
    """Return the arguments of the one call: a batch in front of the group wherever it is.

    Args:
        line: of the call.
        group: from `group_of_batch`.
        values: the arguments, with their batches.
        dims: where those are.
        size: of the batch.
    """
    found = dict(values)
    items = [item for item in line.inputs if _leading(item) == group]
    ranks = [
        tensor.dim() - (dim is not None) - len(item.dims) + 1
        for item in items
        for tensor, dim in _pairs(item, values, dims)
    ]
    for item in items:
        moved = [_moved(item, tensor, dim, max(ranks), size) for tensor, dim in _pairs(item, values, dims)]
        found[item.name] = moved if isinstance(values[item.name], (list, tuple)) else (moved[0] if moved else None)
    return found


def _pairs(item: Item, values: Values, dims: Values) -> list[tuple[Tensor, int | None]]:
    value, dim = values[item.name], dims[item.name]
    if isinstance(value, (list, tuple)):
        return list(zip(value, dim if isinstance(dim, (list, tuple)) else [dim] * len(value), strict=True))
    return [] if value is None else [(value, dim)]


def _moved(item: Item, tensor: Tensor, dim: int | None, rank: int, size: int) -> Tensor:
    """Return a tensor with the batch in front; one that is broadcast gets the group's number of dimensions."""
    is_broadcast = item.dims[0].is_broadcast
    if dim is None:
        return tensor if is_broadcast else tensor.expand(size, *tensor.shape)
    moved = tensor.movedim(dim, 0)
    missing = rank - (moved.dim() - 1 - len(item.dims) + 1)
    return moved.reshape(size, *[1] * missing, *moved.shape[1:]) if is_broadcast and missing else moved


def _leading(item: Item) -> str | None:
    """Return the name of the group in which a tensor's dimensions begin, or None."""
    first = item.dims[0] if item.dims else None
    return first.name if first is not None and first.is_many else None


def _is_batched(dims: Any) -> bool:  # Any: a dimension, a list of those, or None
    return any(dim is not None for dim in dims) if isinstance(dims, (list, tuple)) else dims is not None
