"""Slices of the tensors of a call along one dimension of its line: where each tensor has it, and how it is cut.

x: n (2 h)      along n: x.narrow(0, start, size)      along h: x.unflatten(1, (2, h)).narrow(2, start, size)

A call by the names of its arguments, on the whole or on slices, gives outputs, written tensors and gradients; its
outputs have the shapes of its line or not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.execution.bind import Binder, gather
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Schema
from custom_autograd.shapes.described import DescribedOp, follows_fake
from custom_autograd.shapes.notation import Dim, Item, Line, Size, SizeMismatch, place
from custom_autograd.shapes.requirements import numbers_of
from custom_autograd.shapes.unification import Sizes
from custom_autograd.verification.harness.differentiable import gradients
from custom_autograd.verification.harness.dispatching import call_overload, repeatable

Key: TypeAlias = tuple[str, int]
"""One tensor of a call: the name of the argument or the output, and its position in a list (0 if it is not one)."""

Bounds: TypeAlias = tuple[int, int]
"""Where a slice begins and ends."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a tensor has the dimension that is cut.

    Attributes:
        axis: of the tensor.
        factors: the sizes of the factors whose product that dimension is.
        position: of the cut one among them.
    """

    axis: int
    factors: tuple[int, ...]
    position: int

    def slice(self, tensor: Tensor, bounds: Bounds) -> Tensor:
        """Return a slice of a tensor."""
        start, end = bounds
        factors = tensor.unflatten(self.axis, self.factors)
        return self._flat(factors.narrow(self.axis + self.position, start, end - start))

    def join(self, slices: Sequence[Tensor], bounds: Sequence[Bounds]) -> Tensor:
        """Return the slices side by side."""
        before, after = self.factors[: self.position], self.factors[self.position + 1 :]
        parts = [
            tensor.unflatten(self.axis, (*before, end - start, *after))
            for tensor, (start, end) in zip(slices, bounds, strict=True)
        ]
        return self._flat(torch.cat(parts, self.axis + self.position))

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.flatten(self.axis, self.axis + len(self.factors) - 1)


@dataclass(frozen=True, slots=True)
class CutDimension:
    """One dimension that can be cut.

    Attributes:
        name: in the line.
        index: within a group, counted from its end, -1 the last; None for one that is not a group.
    """

    name: str
    index: int | None = None

    @property
    def written(self) -> str:
        """Return the name as the line has it, n or *b."""
        return self.name if self.index is None else f"*{self.name}"

    @property
    def label(self) -> str:
        """Return the name in quotes, with the index within a group."""
        return f"'{self.name}'" if self.index is None else f"'*{self.name}', dimension {self.index},"

    def size(self, sizes: Sizes, position: int = 0) -> int:
        """Return its size, at a position of the lists."""
        size = sizes.at(self.name, position)
        if not isinstance(size, tuple):
            return size
        assert self.index is not None
        return size[self.index]

    def find_spot(self, item: Item, shape: Sequence[int], sizes: Sizes, position: int = 0) -> Spot | None:
        """Return where a tensor has it, or None; it has it once (see shapes/requirements.py)."""
        return next(self._spots(place(item, shape), sizes, position), None)

    def _spots(self, placed: Iterable[tuple[Dim, Size | None]], sizes: Sizes, position: int) -> Iterator[Spot]:
        axis = 0
        for dim, size in placed:
            if isinstance(size, tuple):
                yield from self._spots_of_group(dim, size, axis)
                axis += len(size)
            elif size is not None:
                if not _is_spread(dim, size):
                    yield from self._spots_of_one(dim, axis, sizes, position)
                axis += 1

    def _spots_of_group(self, dim: Dim, size: tuple[int, ...], axis: int) -> Iterator[Spot]:
        if self.index is not None and dim.name == self.name and len(size) + self.index >= 0:
            inside = len(size) + self.index
            if not _is_spread(dim, size[inside]):
                yield Spot(axis + inside, (size[inside],), 0)

    def _spots_of_one(self, dim: Dim, axis: int, sizes: Sizes, position: int) -> Iterator[Spot]:
        if self.name in dim.factors:
            factors = tuple(sizes.count(one, position) if isinstance(one, str) else one for one in dim.factors)
            yield from (Spot(axis, factors, at) for at, one in enumerate(dim.factors) if one == self.name)


@dataclass(frozen=True, slots=True)
class SliceCut:
    """One way to cut a dimension.

    Attributes:
        rows: by position of the lists, where each slice begins and ends; one row where it is the same at all.
    """

    rows: tuple[tuple[int, tuple[Bounds, ...]], ...]

    @property
    def count(self) -> int:
        """Return the number of slices."""
        return len(self.rows[0][1])

    def at(self, position: int) -> tuple[Bounds, ...]:
        """Return the bounds of the slices at a position of the lists."""
        return dict(self.rows).get(position, self.rows[0][1])


def _is_spread(dim: Dim, size: int) -> bool:
    """Return True if a tensor has the size 1 for all slices."""
    return dim.is_broadcast and size == 1


def cut_dimensions(line: Line, sizes: Sizes, schema: Schema) -> Iterator[CutDimension]:
    """Yield the dimensions that a line claims can be cut.

    Args:
        line: of the call.
        sizes: of its names.
        schema: of the op; the values of its int arguments are not sizes of slices.
    """
    numbers = numbers_of(line, schema)
    of_inputs = dict.fromkeys(name for item in line.inputs for dim in item.dims for name in dim.names)
    for name in of_inputs:
        if name in line.along or name in numbers or name not in sizes:
            continue
        size = sizes[name]
        if isinstance(size, tuple):
            yield from (CutDimension(name, index - len(size)) for index in range(len(size)))
        else:
            yield CutDimension(name)


def cuts_of(totals: Mapping[int, int]) -> Iterator[SliceCut]:
    """Yield ways to cut sizes into slices, none of them empty: in halves, in one and the rest, in three.

    Args:
        totals: by position of the lists, the size; only 0 where it is the same at all.
    """
    found = dict.fromkeys(
        SliceCut(tuple((position, tuple(itertools.pairwise(ends_of(size)))) for position, size in totals.items()))
        for ends_of in ENDS
    )
    yield from (cut for cut in found if all(end > start for _, row in cut.rows for start, end in row))


ENDS: tuple[Callable[[int], tuple[int, ...]], ...] = (
    lambda size: (0, (size + 1) // 2, size),
    lambda size: (0, 1, size),
    lambda size: (0, 1, 1 + size // 2, size),
)

Values: TypeAlias = dict[str, Any]
"""The arguments of a call by name, in the form of users (Any: tensors, lists of tensors, other values)."""

Tensors: TypeAlias = dict[Key, Tensor]

Part: TypeAlias = tuple[Literal["output", "written", "gradient"], Key]
"""What slices are compared by: an output, the new value of a written tensor, or the gradient of an input."""

NamedFunction: TypeAlias = Callable[[Values], object]
"""A call with its arguments by name."""


@dataclass(frozen=True, slots=True)
class SlicedOutcome:
    """What one call leaves.

    Attributes:
        inputs: its floating-point tensors, each a leaf.
        outputs: new tensors, hidden ones included.
        written: the new values of the tensors that the op writes to.
    """

    inputs: Tensors
    outputs: Tensors
    written: Tensors

    @property
    def results(self) -> dict[Part, Tensor]:
        """Return outputs and written tensors."""
        outputs: dict[Part, Tensor] = {("output", key): tensor for key, tensor in self.outputs.items()}
        return {**outputs, **{("written", key): tensor for key, tensor in self.written.items()}}

    def gradients(self, cotangents: Mapping[Part, Tensor]) -> dict[Part, Tensor]:
        """Return the gradient of each input that requires one; zero where nothing connects them."""
        able = {key: tensor for key, tensor in self.inputs.items() if tensor.requires_grad}
        outputs = [self.results[part] for part in cotangents]
        grads = gradients(outputs, list(able.values()), [u.clone() for u in cotangents.values()])
        return {("gradient", key): grad for key, grad in zip(able, grads, strict=True)}


def values_of(record: OpRecord, sample: Sample) -> Values:
    """Return the arguments of a sample by name, those of containers one by one, defaults included."""
    schema = record.declaration.schema
    flat = adapter_of(record.declaration).around(
        sample, lambda tree, call: call.with_arguments(*tree.flat_call(*call.args, **call.kwargs))
    )
    given = {**dict(gather(schema, flat.args)), **flat.kwargs}
    return {a.name: given.get(a.name, a.default) for a in schema.arguments}


def tensors_of(name: str, value: Any) -> Iterator[tuple[Key, Tensor]]:  # Any: an argument or an output
    """Yield the tensors of an argument or an output."""
    if isinstance(value, Tensor):
        yield (name, 0), value
    elif isinstance(value, (list, tuple)):
        yield from (((name, index), one) for index, one in enumerate(value) if isinstance(one, Tensor))


def op_function(record: OpRecord) -> NamedFunction:
    """Return an op with hidden outputs."""
    call = repeatable(record.declaration.schema, functools.partial(call_overload, record))
    return _by_name(record.declaration.schema, call)


def reference_function(record: OpRecord) -> NamedFunction | None:
    """Return the reference of an op, or None."""
    reference, schema = record.reference(), record.declaration.schema
    return None if reference is None else _by_name(schema, repeatable(schema, reference))


def _by_name(schema: Schema, function: Callable[..., object]) -> NamedFunction:
    binder = Binder(schema)

    def call(values: Values) -> object:
        positional, keywords = binder.user_call(values)
        return function(*positional, **keywords)

    return call


def run(record: OpRecord, function: NamedFunction, values: Values, *, has_gradients: bool = True) -> SlicedOutcome:
    """Call a function on copies of tensors.

    Args:
        record: the op that the function computes.
        function: takes the arguments by name.
        values: the arguments.
        has_gradients: tensors that require grad do so in this call.
    """
    schema = record.declaration.schema
    given, inputs, written = dict(values), Tensors(), Tensors()
    for argument in schema.tensor_arguments:
        value = values[argument.name]
        is_able = has_gradients and argument.is_differentiable
        leaves = {key: _leaf(tensor, is_able=is_able) for key, tensor in tensors_of(argument.name, value)}
        passed = {key: leaf.clone() if argument.is_mutated else leaf for key, leaf in leaves.items()}
        given[argument.name] = with_tensors(value, argument.name, passed)
        inputs.update(leaves)
        written.update(passed if argument.is_mutated else {})
    return SlicedOutcome(inputs, _outputs(schema, function(given)), written)


def with_tensors(value: Any, name: str, tensors: Tensors) -> Any:  # Any: an argument, and the same one
    """Return an argument with other tensors."""
    if isinstance(value, (list, tuple)):
        return [tensors.get((name, index)) for index in range(len(value))]
    return tensors.get((name, 0))


def _leaf(tensor: Tensor, *, is_able: bool) -> Tensor:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.requires_grad_(is_able and tensor.requires_grad)


def _outputs(schema: Schema, result: object) -> Tensors:
    outputs = schema.fresh_outputs
    is_bare = len(outputs) == 1 and (outputs[0].is_tensor_list or isinstance(result, Tensor))
    found: Sequence[object] = [result] if is_bare else result if isinstance(result, (list, tuple)) else []
    pairs = zip(outputs, found, strict=False)
    return {key: tensor for output, value in pairs for key, tensor in tensors_of(output.name, value)}


def find_other_shapes(line: Line, sizes: Sizes, outcome: SlicedOutcome) -> Iterator[str]:
    """Yield what outputs do not have of their line, in words."""
    items = {item.name: item for item in line.outputs}
    for (name, position), tensor in outcome.outputs.items():
        if not _fits(items[name], tensor, sizes, position):
            said = f"which is {_shape(items[name], sizes, position)} here"
            yield f"'{name}' has the shape {tuple(tensor.shape)}; the line declares {items[name]}, {said}"


def find_other_metadata(
    described: DescribedOp, record: OpRecord, values: Values, outcome: SlicedOutcome
) -> Iterator[str]:
    """Yield what is not as the line, or the fake that follows from it, says, in words."""
    is_fake = follows_fake(described, record, values)
    for (name, _), tensor in outcome.outputs.items():
        if is_fake and not tensor.is_contiguous():
            yield (
                f"'{name}' is not contiguous, and the fake that follows from the line declares it is. "
                "Return it contiguous, or register a fake"
            )


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
    """Return the shape that the line declares, with what it leaves open as it is written."""
    found: list[str] = []
    for dim in item.dims:
        size = sizes.at(dim.names[0], position) if dim.is_many and dim.factors else None
        if isinstance(size, tuple):
            found += map(str, size)
        else:
            found.append(str(sizes.size_of(dim, position)) if dim.factors else str(dim))
    return f"({', '.join(found)}{',' * (len(found) == 1)})"
