"""Proposes a line of shapes for an op: its names by probing a sample, its brackets by cutting all of them."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample, TensorLeaf
from custom_autograd.schema.schema import Argument
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.requirements import INTEGERS
from custom_autograd.shapes.rule import ShapesRule
from custom_autograd.verification.harness.cut_calls import compare_slices, whole_call
from custom_autograd.verification.harness.probing import Place, find_groups, shapes_of_outputs
from custom_autograd.verification.harness.slices import find_other_shapes, op_function, values_of
from custom_autograd.verification.harness.targets import Target

Factors: TypeAlias = tuple[str | int, ...]
"""The names and numbers whose product a size is, outermost first; empty if it is not known."""


LARGEST = 4
"""Up to this, a size that no sample has otherwise is taken for a literal: 2 for pairs, 3 for points, 4 for boxes."""


@dataclass(frozen=True, slots=True)
class DraftTensor:
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

    inputs: tuple[DraftTensor, ...]
    outputs: tuple[DraftTensor, ...]
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
        outputs = tuple(DraftTensor(output.name, self._output(number, shape)) for output, (number, shape) in rows)
        tensors = [tensor.dims for tensor in (*inputs, *outputs) if tensor.dims is not None]
        return Draft(inputs, outputs, self._fixed(tensors), _leading(tensors, self._lone))

    def _input(self, argument: Argument) -> DraftTensor:
        """Return an argument; a dimension that cannot be changed is a number, or gets a name of its own."""
        label = f"{argument.name}{'?' * argument.is_optional}"
        leaves = enumerate(self._sample.leaves())
        found = [(number, leaf.tensor) for number, leaf in leaves if self._is_of(leaf, argument)]
        if not found:
            return DraftTensor(label, None)
        number, tensor = found[0]
        dims = enumerate(tensor.shape)
        return DraftTensor(label, tuple(self._dim(argument, Place(number, dim), size) for dim, size in dims))

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
    return not any(factor in names for dim in dims[count:] for factor in dim)


def _written(tensor: DraftTensor, group: tuple[str, ...], along: Collection[str]) -> str:
    if tensor.dims is None:
        return f"{tensor.label}: ..."
    dims = [_with_brackets(dim, along) for dim in tensor.dims]
    if group and tensor.dims[: len(group)] == tuple((name,) for name in group):
        is_along = any(name in along for name in group)
        dims = [f"[*{group[0]}]" if is_along else f"*{group[0]}", *dims[len(group) :]]
    return f"{tensor.label}: {' '.join(dims)}".rstrip()


def _with_brackets(dim: Factors, along: Collection[str]) -> str:
    text = str(dim[0]) if len(dim) == 1 else f"({' '.join(map(str, dim))})" if dim else "_"
    return f"[{text}]" if any(factor in along for factor in dim) else text


MOST_DRAFTS = 4
UNKNOWN, GROUP = re.compile(r"(?<!\w)(1|_|\.\.\.)(?!\w)"), re.compile(r"\[\*")
"""Dimensions without a name, and groups in brackets."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A line, and why it is what it is.

    Attributes:
        line: the text.
        reasons: by name in brackets, why the op cannot be cut along it.
        misfits: the samples that do not have these dimensions.
    """

    line: str
    reasons: Mapping[str, str]
    misfits: tuple[Sample, ...]


def propose(target: Target, record: OpRecord, samples: Sequence[Sample]) -> Proposal:
    """Return the line that fits the most samples; of those, the one with the fewest brackets.

    Args:
        target: the op.
        record: of the op.
        samples: calls that it accepts.
    """
    found: list[Proposal] = []
    for sample in sorted(samples, key=_telling, reverse=True)[:MOST_DRAFTS]:
        draft = draft_of(target, record, sample, samples)
        found += [_bracketed(record, draft, leading, samples) for leading in range(len(draft.leading) + 1)]
    return min(found, key=_cost)


def _cost(proposal: Proposal) -> tuple[int, ...]:
    """Return what is against a proposal, the worst first."""
    line = proposal.line
    unknown, groups = len(UNKNOWN.findall(line)), len(GROUP.findall(line))
    return len(proposal.misfits), unknown, groups, len(proposal.reasons), len(line)


def _telling(sample: Sample) -> tuple[int, int]:
    """Return how much a sample shows: the number of its tensors with sizes other than 0 and 1, and of sizes."""
    tensors = [tensor for tensor in sample.tensors() if all(size > 1 for size in tensor.shape)]
    return len(tensors), len({size for tensor in tensors for size in tensor.shape})


def _bracketed(record: OpRecord, draft: Draft, leading: int, samples: Sequence[Sample]) -> Proposal:
    """Return a draft with brackets around the names along which a sample cannot be cut."""
    reasons = dict(draft.fixed)
    while True:
        line = draft.line(leading, reasons)
        results = [(sample, _find_false(record, line, sample)) for sample in samples]
        false = {
            name: f"{why}  (on {sample})"
            for sample, found in results
            for name, why in (found or {}).items()
            if name not in reasons
        }
        if not false:
            misfits = tuple(sample for sample, found in results if found is None)
            return Proposal(line, reasons, misfits)
        reasons |= false


def _find_false(record: OpRecord, line: str, sample: Sample) -> dict[str, str] | None:
    """Return the names whose claims are false, each with the reason; None if the sample does not fit the line."""
    try:
        described = DescribedOp(record.declaration, ShapesRule("", line))
        whole, _ = whole_call(described, record, op_function(record), sample)
        if any(find_other_shapes(whole.line, whole.sizes, whole.outcome)):
            return None
        found = [(dimension.name, compare_slices(whole, dimension)) for dimension in whole.dimensions()]
    except Exception:  # noqa: BLE001 - whatever the line or the op raises for the sample, the line is not for it
        return None
    return {name: finding.message for name, finding in found if finding is not None and finding.status == "failed"}
