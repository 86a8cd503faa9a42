"""The dimensions of one sample of an op by name, and the lines that can be made of them."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample, TensorLeaf
from custom_autograd.schema.schema import Argument
from custom_autograd.shapes.contract import INTEGERS
from custom_autograd.verification.harness.probing import Place, find_groups, shapes_of_outputs
from custom_autograd.verification.harness.sliced_calls import values_of
from custom_autograd.verification.harness.targets import Target

Factors: TypeAlias = tuple[str | int, ...]
"""The names and numbers whose product a size is, outermost first; empty if it is not known."""


LARGEST = 4
"""Up to this, a size that no sample has otherwise is taken for a literal: 2 for pairs, 3 for points, 4 for boxes."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a draft.

    Attributes:
        label: its name in the line, with '?' if it is optional.
        dims: its dimensions; None for an input that the sample leaves out.
    """

    label: str
    dims: tuple[Factors, ...] | None


@dataclass(frozen=True, slots=True)
class Draft:
    """The dimensions of one sample.

    Attributes:
        inputs: the tensors that the op takes.
        outputs: those that it returns.
        fixed: the names that have to be in brackets, each with the reason.
        leading: the names with which every tensor begins that has one of them: they can be a group.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    fixed: Mapping[str, str]
    leading: tuple[str, ...]

    def line(self, leading: int, along: Collection[str]) -> str:
        """Return the line.

        Args:
            leading: how many of the leading dimensions are one group.
            along: the names in brackets.
        """
        group = self.leading[:leading]
        inputs, outputs = (
            ", ".join(_written(tensor, group, along) for tensor in tensors) for tensors in (self.inputs, self.outputs)
        )
        return f"{inputs} -> {outputs}".rstrip()


def draft_of(target: Target, record: OpRecord, sample: Sample, samples: Sequence[Sample]) -> Draft:
    """Return the draft of one of the samples."""
    return _Drafting(target, record, sample, samples).draft()


class _Drafting:
    """Names the dimensions of one sample."""

    def __init__(self, target: Target, record: OpRecord, sample: Sample, samples: Sequence[Sample]) -> None:
        self._schema = record.declaration.schema
        self._target, self._sample, self._samples = target, sample, samples
        self._values = values_of(record, sample)
        self._outputs = shapes_of_outputs(target, sample)
        letters = itertools.chain(string.ascii_lowercase, (f"n{number}" for number in itertools.count(1)))
        self._free = (letter for letter in letters if letter not in self._schema.argument_names)
        self._groups = {next(self._free): group for group in find_groups(target, sample)}
        self._lone: dict[str, int] = {}

    def draft(self) -> Draft:
        inputs = tuple(map(self._input, self._schema.tensor_arguments))
        rows = zip(self._schema.fresh_outputs, enumerate(self._outputs), strict=False)
        outputs = tuple(Tensor(output.name, self._output(number, shape)) for output, (number, shape) in rows)
        tensors = [tensor.dims for tensor in (*inputs, *outputs) if tensor.dims is not None]
        return Draft(inputs, outputs, self._fixed(tensors), _leading(tensors, self._lone))

    def _input(self, argument: Argument) -> Tensor:
        """Return an argument; a dimension that cannot be changed is a number, or gets a name of its own."""
        label = f"{argument.name}{'?' * argument.is_optional}"
        leaves = enumerate(self._sample.leaves())
        found = [(number, leaf.tensor) for number, leaf in leaves if self._is_of(leaf, argument)]
        if not found:
            return Tensor(label, None)
        number, tensor = found[0]
        dims = enumerate(tensor.shape)
        return Tensor(label, tuple(self._dim(argument, Place(number, dim), size) for dim, size in dims))

    def _is_of(self, leaf: TensorLeaf, argument: Argument) -> bool:
        return self._target.argument_of(leaf).name == argument.name

    def _dim(self, argument: Argument, place: Place, size: int) -> Factors:
        factors = _factors({name: group.inputs[place] for name, group in self._groups.items() if place in group.inputs})
        if factors:
            return factors
        if size == 1 or (size <= LARGEST and self._sizes_elsewhere(argument, place) == {size}):
            return (size,)
        name = next(self._free)
        self._lone[name] = size
        return (name,)

    def _sizes_elsewhere(self, argument: Argument, place: Place) -> set[int]:
        """Return the sizes that a dimension has in all samples; none if fewer than three have it."""
        tensors = [leaf.tensor for sample in self._samples for leaf in sample.leaves() if self._is_of(leaf, argument)]
        sizes = [tensor.shape[place.dim] for tensor in tensors if tensor.dim() > place.dim]
        return set(sizes) if len(sizes) > 2 else set()

    def _output(self, number: int, shape: tuple[int, ...]) -> tuple[Factors, ...]:
        return tuple(self._output_dim(Place(number, dim), size) for dim, size in enumerate(shape))

    def _output_dim(self, place: Place, size: int) -> Factors:
        """Return the names of an output's dimension; else what else has that size, if only one thing has."""
        found = {name: group.outputs[place] for name, group in self._groups.items() if place in group.outputs}
        if found or size == 1:
            return _factors(found) or (1,)
        integers = [a.name for a in self._schema.arguments if a.type in INTEGERS and self._values[a.name] == size]
        same = [*integers, *(name for name, other in self._lone.items() if other == size)]
        return (same[0],) if len(same) == 1 else ()

    def _fixed(self, tensors: Sequence[tuple[Factors, ...]]) -> dict[str, str]:
        found = dict.fromkeys(self._lone, "no call with another size of it was accepted")
        for dims in tensors:
            names = [factor for dim in dims for factor in dim if isinstance(factor, str)]
            found |= {name: "a tensor has it twice" for name in names if names.count(name) > 1}
            found |= {name: "it is an argument of the op" for name in names if name in self._schema.argument_names}
        return found


def _factors(found: Mapping[str, int]) -> Factors:
    """Return a name, or a product; the factor that goes with the largest steps is the inner one of a block."""
    if len(found) > 1:
        outermost_first: list[str] = sorted(found, key=lambda name: -found[name])
        return tuple(outermost_first)
    return tuple(part for name, factor in found.items() for part in ((name,) if factor == 1 else (factor, name)))


def _leading(tensors: list[tuple[Factors, ...]], fixed: Collection[str]) -> tuple[str, ...]:
    """Return the longest names with which each tensor begins that has one of them."""
    longest = max(tensors, key=len)
    names = [dim[0] for dim in longest if len(dim) == 1 and isinstance(dim[0], str) and dim[0] not in fixed]
    for count in range(len(names), 0, -1):
        wanted: list[Factors] = [(name,) for name in names[:count]]
        if all(_begins(dims, wanted) for dims in tensors):
            return tuple(name for name in names[:count] if isinstance(name, str))
    return ()


def _begins(dims: tuple[Factors, ...], wanted: list[Factors]) -> bool:
    """Return True if a tensor begins with these dimensions and has them nowhere else, or has none of them."""
    names = [dim[0] for dim in wanted]
    count = len(wanted) if list(dims[: len(wanted)]) == wanted else 0
    return not _has_any(dims[count:], names)


def _has_any(dims: tuple[Factors, ...], names: Collection[str | int]) -> bool:
    return any(factor in names for dim in dims for factor in dim)


def _written(tensor: Tensor, group: tuple[str, ...], along: Collection[str]) -> str:
    if tensor.dims is None:
        return f"{tensor.label}: ..."
    dims = [_bracketed(dim, along) for dim in tensor.dims]
    if group and tensor.dims[: len(group)] == tuple((name,) for name in group):
        is_along = any(name in along for name in group)
        dims = [f"[*{group[0]}]" if is_along else f"*{group[0]}", *dims[len(group) :]]
    return f"{tensor.label}: {' '.join(dims)}".rstrip()


def _bracketed(dim: Factors, along: Collection[str]) -> str:
    text = str(dim[0]) if len(dim) == 1 else f"({' '.join(map(str, dim))})" if dim else "_"
    return f"[{text}]" if any(factor in along for factor in dim) else text
