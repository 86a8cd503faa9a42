"""Fakes that follow from a line: empty, contiguous outputs of the sizes of the line; and their dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from custom_autograd.core.errors import FakeUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.core.schema import Output, Schema
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.rule import WIDE, DType
from custom_autograd.values.tensors import tensors_in


def can_have_fake(schema: Schema) -> bool:
    """Return True if lines can say all that an op returns: single tensors, like one that it is always given."""
    has_tensor = any(argument.type == "Tensor" for argument in schema.arguments)
    return has_tensor and bool(schema.outputs) and all(map(_is_new_tensor, schema.outputs))


def follows_fake(described: DescribedOp, record: OpRecord, values: Mapping[str, Any]) -> bool:  # Any: arguments
    """Return True if the fake of a call follows from its line."""
    has_other = record.registrations.fake is not None or record.reference() is not None
    is_said = can_have_fake(record.declaration.schema) and described.line(values).unknown_output() is None
    return is_said and not has_other


def empty_outputs(described: DescribedOp, values: Mapping[str, Any]) -> Any:  # Any: arguments; a tensor or a tuple
    """Return what a call gives, without data: contiguous, and on the device of the first tensor.

    Raises:
        ShapeError: the arguments do not have the dimensions of the line.
        FakeUnavailable: nothing says the dtype of an output.
    """
    sizes, schema = described.sizes(values), described.declaration.schema
    first = tensors_in([values[argument.name] for argument in schema.tensor_arguments])[0]
    shapes = {item.name: sizes.shape_of(item) for item in sizes.line.outputs}
    dtypes = {output.name: find_dtype(described, output.name, values) for output in schema.outputs}
    unknown = next((name for name, dtype in dtypes.items() if dtype is None), None)
    if unknown is not None:
        raise _without_dtype(described, unknown, values, described.where(sizes.line))
    found = [first.new_empty(shapes[name], dtype=dtype) for name, dtype in dtypes.items()]
    return found[0] if len(found) == 1 else tuple(found)


def find_dtype(described: DescribedOp, output: str, values: Mapping[str, Any]) -> torch.dtype | None:  # Any: arguments
    """Return the dtype of an output: as `dtypes` says, else that of the floating and complex inputs; None if unknown.

    Integer inputs (indices, lengths, masks) count only if there are no others.
    """
    dtype: DType | None = described.rule.dtypes.get(output)
    if isinstance(dtype, torch.dtype):
        return dtype
    value = None if dtype is None or dtype == WIDE else values[dtype]
    if value is not None:
        return value if isinstance(value, torch.dtype) else tensors_in([value])[0].dtype
    given = {tensor.dtype for tensor in tensors_in(list(values.values()))}
    found = {one for one in given if one.is_floating_point or one.is_complex} or given
    if dtype == WIDE:
        found = {torch.promote_types(one, torch.float32) for one in found}
    return found.pop() if len(found) == 1 else None


def _without_dtype(described: DescribedOp, output: str, values: Mapping[str, Any], where: str) -> FakeUnavailable:
    arguments = described.declaration.schema.tensor_arguments
    tensors = {argument.name: tensors_in([values[argument.name]]) for argument in arguments}
    dtypes = (f"'{name}' {one.dtype}" for name, given in tensors.items() for one in given[:1])
    return described.declaration.origin(where).error(
        FakeUnavailable,
        f"the line of shapes does not say the dtype of '{output}', and the inputs have several",
        expected="one dtype among the floating and complex inputs, or among integer inputs alone",
        found=", ".join(dtypes),
        do=f"add dtypes={{'{output}': ...}}: a torch.dtype, '{WIDE}', or one of {quote(tensors)}; or register_fake",
    )


def _is_new_tensor(output: Output) -> bool:
    return output.type == "Tensor" and output.alias_of is None and output.may_be is None
