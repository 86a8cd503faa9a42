"""Fakes that follow from a line: empty, contiguous outputs of the sizes of the line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.schema import Output, Schema
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.rule import WIDE, DType
from custom_autograd.values.tensors import tensors_in


def can_have_fake(schema: Schema) -> bool:
    """Return True if lines can say all that an op returns: single tensors, like one that it is always given."""
    has_tensor = any(argument.type == "Tensor" for argument in schema.arguments)
    return has_tensor and bool(schema.outputs) and all(map(_is_new_tensor, schema.outputs))


def empty_outputs(described: DescribedOp, values: Mapping[str, Any]) -> Any:  # Any: arguments; a tensor or a tuple
    """Return what a call gives, without data: on the device of the first tensor, and in its dtype or as `dtypes` says.

    Raises:
        ShapeError: the arguments do not have the dimensions of the line.
    """
    sizes, schema = described.sizes(values), described.declaration.schema
    first = tensors_in([values[argument.name] for argument in schema.tensor_arguments])[0]
    shapes = {item.name: sizes.shape_of(item) for item in sizes.line.outputs}
    found = [
        first.new_empty(shapes[output.name], dtype=dtype_of(described.rule.dtypes.get(output.name), first, values))
        for output in schema.outputs
    ]
    return found[0] if len(found) == 1 else tuple(found)


def dtype_of(dtype: DType | None, first: Tensor, values: Mapping[str, Any]) -> torch.dtype:  # Any: arguments
    """Return the dtype of an output from what `dtypes` says of it."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == WIDE:
        return torch.promote_types(first.dtype, torch.float32)
    if dtype is None or values[dtype] is None:
        return first.dtype
    value = values[dtype]
    return value if isinstance(value, torch.dtype) else tensors_in([value])[0].dtype


def _is_new_tensor(output: Output) -> bool:
    return output.type == "Tensor" and output.alias_of is None and output.may_be is None
