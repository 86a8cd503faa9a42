"""Whether outputs of a call have the shapes of its line; and the dtype and layout of a fake that follows from it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.fakes import can_have_fake, dtype_of
from custom_autograd.shapes.notation import Item, Line
from custom_autograd.shapes.placing import SizeMismatch, place
from custom_autograd.shapes.sizes import Sizes
from custom_autograd.values.tensors import tensors_in
from custom_autograd.verification.harness.sliced_calls import Outcome, Values


def find_other_shapes(line: Line, sizes: Sizes, outcome: Outcome) -> Iterator[str]:
    """Yield what outputs do not have of their line, in words."""
    items = {item.name: item for item in line.outputs}
    for (name, position), tensor in outcome.outputs.items():
        if not _fits(items[name], tensor, sizes, position):
            said = f"which is {_shape(items[name], sizes, position)} here"
            yield f"'{name}' has the shape {tuple(tensor.shape)}; the line says {items[name]}, {said}"


def find_other_metadata(described: DescribedOp, record: OpRecord, values: Values, outcome: Outcome) -> Iterator[str]:
    """Yield what is not as the line, or the fake that follows from it, says, in words."""
    schema, dtypes = record.declaration.schema, described.rule.dtypes
    is_fake = follows_fake(described, record, values)
    tensors = tensors_in([values[argument.name] for argument in schema.tensor_arguments])
    for (name, _), tensor in outcome.outputs.items():
        if tensors and (is_fake or name in dtypes):
            wanted = dtype_of(dtypes.get(name), tensors[0], values)
            if tensor.dtype != wanted:
                said = "dtypes= says" if name in dtypes else "that of the first tensor is"
                yield f"'{name}' has the dtype {tensor.dtype}; {said} {wanted}. Write dtypes={{'{name}': ...}}"
        if is_fake and not tensor.is_contiguous():
            yield (
                f"'{name}' is not contiguous, and the fake that follows from the line says it is. "
                "Return it contiguous, or register a fake"
            )


def follows_fake(described: DescribedOp, record: OpRecord, values: Values) -> bool:
    """Return True if the fake of a call follows from its line."""
    has_other = record.registrations.fake is not None or record.reference() is not None
    is_said = can_have_fake(record.declaration.schema) and described.line(values).unknown_output() is None
    return is_said and not has_other


def _fits(item: Item, tensor: Tensor, sizes: Sizes, position: int) -> bool:
    try:
        placed = list(place(item, tensor.shape))
    except SizeMismatch:
        return False
    return all(
        size == (sizes.at(dim.names[0], position) if dim.is_many else sizes.size_of(dim, position))
        for dim, size in placed
        if dim.factors
    )


def _shape(item: Item, sizes: Sizes, position: int) -> str:
    """Return the shape that the line says, with what it leaves open as it is written."""
    found: list[str] = []
    for dim in item.dims:
        size = sizes.at(dim.names[0], position) if dim.is_many and dim.factors else None
        if isinstance(size, tuple):
            found += map(str, size)
        else:
            found.append(str(sizes.size_of(dim, position)) if dim.factors else str(dim))
    return f"({', '.join(found)}{',' * (len(found) == 1)})"
