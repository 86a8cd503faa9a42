"""Rows: what one dimension of a mesh can hold of each tensor of a call. Each unbracketed dimension of a line is a row.

x: *b [d], weight: [d] -> out: *b [d]           x            weight       out
                            b[0]                Shard(0)     Replicate    Shard(0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from custom_autograd.core.schema import Schema
from custom_autograd.shapes.contract import numbers_of
from custom_autograd.shapes.cuts import Cut, cuts_of
from custom_autograd.shapes.described import DescribedOp, shapes_of
from custom_autograd.torch_private.placements import PARTIAL, REPLICATE, Placement

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
