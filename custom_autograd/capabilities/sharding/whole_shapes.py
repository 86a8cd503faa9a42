"""Shapes of whole outputs, from those of whole inputs: a rank that has a slice cannot know how large the others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import DescribedOp, shapes_of
from custom_autograd.shapes.lookup import described_op
from custom_autograd.shapes.notation import Dim
from custom_autograd.shapes.sizes import Sizes


class WholeShapes:
    """The shapes of the outputs of one op.

    Args:
        record: the op.
    """

    def __init__(self, record: OpRecord) -> None:
        self._record = record

    def shape_of(self, values: Mapping[str, Any], name: str, place: int, local: Tensor) -> Sequence[int]:
        """Return the shape of an output.

        Args:
            values: the arguments (Any: tensors, or what has a shape).
            name: of the output.
            place: of the tensor, if the output is a list.
            local: what this rank has of it.
        """
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
    """Return the number of dimensions besides those that `...` stands for."""
    groups = [sizes.at(dim.names[0], place) for dim in dims if dim.is_many and dim.factors]
    return sum(len(group) for group in groups if isinstance(group, tuple)) + sum(not dim.is_many for dim in dims)
