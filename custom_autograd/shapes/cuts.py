"""Cuts: the dimensions along which an op can be cut into slices, and where each tensor has them.

A dimension without brackets is independent: what the op returns for slices of its inputs are slices of what it returns
for the whole; where an output lacks the dimension, the outputs of the slices are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from custom_autograd.shapes.notation import Item, Line
from custom_autograd.shapes.placing import Shape, place
from custom_autograd.shapes.sizes import Sizes
from custom_autograd.shapes.unification import Shapes


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
    """Yield every cut of a call.

    Args:
        line: the line.
        shapes: of the inputs.
        sizes: of the names.
    """
    for name in _candidates(line):
        if name not in sizes:
            continue
        size = sizes[name]
        for index in range(len(size)) if isinstance(size, tuple) else (None,):
            cut = cut_of(line, shapes, sizes, name, index)
            if any(dim is not None for dims in cut.inputs.values() for dim in dims):
                yield cut


def cut_of(line: Line, shapes: Shapes, sizes: Sizes, name: str, index: int | None = None) -> Cut:
    """Return the cut along one dimension, which may be in brackets.

    Args:
        line: the line.
        shapes: of the inputs.
        sizes: of the names.
        name: of the dimension.
        index: of the dimension within a group.
    """
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
