"""What follows from a line for batches and slices: vmap as one more dimension, and where tensors can be cut.

A dimension without brackets is independent: what the op returns for slices of its inputs are slices of what it returns
for the whole; where an output lacks the dimension, the outputs of the slices are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from custom_autograd.registration.declaration import Declaration
from custom_autograd.shapes.notation import Item, Line, Shape, place
from custom_autograd.shapes.unification import Shapes, Sizes


@dataclass(frozen=True, slots=True)
class Cut:
    """One dimension along which a call can be cut.

    Attributes:
        name: of the dimension.
        index: within a group, which of its dimensions; None for one that is no group.
        size: how many slices there can be at most.
        inputs: by input, the dimension of each of its tensors that is cut; None for a tensor that is the same for all
            slices.
        outputs: by output, the dimension along which the outputs of the slices are put together; None for one that is
            their sum.
        is_product: the dimension is the outer factor of a product in some tensor.
    """

    name: str
    index: int | None
    size: int
    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: Mapping[str, int | None]
    is_product: bool

    @property
    def label(self) -> str:
        """Return the name, with the index within a group."""
        return self.name if self.index is None else f"{self.name}[{self.index}]"


def cuts_of(line: Line, shapes: Shapes, sizes: Sizes) -> Iterator[Cut]:
    """Yield every cut of a call."""
    for name in _candidates(line):
        if name not in sizes:
            continue
        size = sizes[name]
        for index in range(len(size)) if isinstance(size, tuple) else (None,):
            cut = cut_of(line, shapes, sizes, name, index)
            if any(dim is not None for dims in cut.inputs.values() for dim in dims):
                yield cut


def cut_of(line: Line, shapes: Shapes, sizes: Sizes, name: str, index: int | None = None) -> Cut:
    """Return the cut along one dimension, which may be in brackets."""
    inputs = {
        item.name: tuple(_position(item, shape, sizes, name, index) for shape in shapes.get(item.name, ()))
        for item in line.inputs
    }
    size = sizes[name]
    whole = size[index] if isinstance(size, tuple) and index is not None else sizes.count(name)
    outputs = {item.name: _output_position(item, sizes, name, index) for item in line.outputs}
    return Cut(name, index, whole, inputs, outputs, _is_in_product(line, name))


def _candidates(line: Line) -> list[str]:
    """Return the names that are not in brackets, and of a product only the outer factor."""
    inner = {factor for dim in line.dims() for factor in dim.factors[1:]}
    behind = {name for dim in line.dims() if dim.factors and isinstance(dim.factors[0], int) for name in dim.names}
    return [name for name in line.names() if name not in line.along and name not in inner and name not in behind]


def _is_in_product(line: Line, name: str) -> bool:
    return any(len(dim.factors) > 1 and dim.factors[0] == name for dim in line.dims())


def _position(item: Item, shape: Shape, sizes: Sizes, name: str, index: int | None) -> int | None:
    """Return the dimension of a tensor that a cut divides, or None."""
    at = 0
    for dim, size in place(item, shape):
        if size is None:
            continue
        is_it = bool(dim.factors) and dim.factors[0] == name
        if isinstance(size, tuple):
            whole = sizes[name] if is_it else ()
            inside = -1 if index is None or not isinstance(whole, tuple) else index - len(whole) + len(size)
            if is_it and inside >= 0 and not (dim.is_broadcast and size[inside] == 1):
                return at + inside
            at += len(size)
        elif is_it and not (dim.is_broadcast and size == 1):
            return at
        else:
            at += 1
    return None


def _output_position(item: Item, sizes: Sizes, name: str, index: int | None) -> int | None:
    at = 0
    for dim in item.dims:
        group = sizes[dim.names[0]] if dim.is_many and dim.factors else None
        if dim.factors and dim.factors[0] == name:
            return at if index is None else at + index
        at += len(group) if isinstance(group, tuple) else 1
    return None


# vmap that follows from a line: the batch is one more dimension in front of `*b`, and the op is called once.
#
# It does so if every output, and every input with a batch, begins with the same group `*b`, which is not in brackets.


Values = Mapping[str, Any]  # Any: the arguments of a call; dimensions of a batch, in the same structure


def can_be_batched(declaration: Declaration) -> bool:
    """Return True if a line may say how an op is batched: it returns new tensors, and draws no random numbers."""
    schema = declaration.schema
    is_plain = all(output.type == "Tensor" and output.alias_of is None for output in schema.outputs)
    return is_plain and bool(schema.outputs) and not declaration.may_draw and not schema.mutated_arguments


def group_of_batch(line: Line, dims: Values) -> str | None:
    """Return the group in front of which the batch goes, or None if there is none."""
    batched = [item for item in line.inputs if _is_batched(dims[item.name])]
    groups = {_leading(item) for item in (*batched, *line.outputs)}
    group = groups.pop() if len(groups) == 1 else None
    is_inside = any(dim.name == group for item in line.inputs for dim in item.dims[1:])
    return None if group in line.along or is_inside else group


def with_batch_in_front(line: Line, group: str, values: Values, dims: Values, size: int) -> dict[str, Any]:
    """Return the arguments of the one call: a batch in front of the group wherever it is."""
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
