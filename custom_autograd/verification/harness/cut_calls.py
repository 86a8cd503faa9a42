"""A call that is cut along one dimension of its line, compared with the whole: outputs, written tensors, gradients.

A line claims of each tensor of the call that its slices are side by side, add up, or are all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.notation import Item, Line
from custom_autograd.shapes.unification import Sizes
from custom_autograd.verification.harness.agreement import to_double
from custom_autograd.verification.harness.base import PASSED, Finding, failed, find_refusal, first_line
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.slices import (
    Bounds,
    CutDimension,
    Key,
    NamedFunction,
    Part,
    SliceCut,
    SlicedOutcome,
    Spot,
    Values,
    cut_dimensions,
    cuts_of,
    run,
    tensors_of,
    values_of,
    with_tensors,
)

FACTOR = 10.0
"""How much wider than that of the dtype the tolerance is: slices are summed in another order."""

MEAN = "the whole is their mean"
WHOLE = "each slice gives the whole"


@dataclass(frozen=True, slots=True)
class Broken:
    """A claim that does not hold.

    Attributes:
        problem: which tensor of the slices is not that of the whole.
        reason: what it is instead, in a few words; empty if unknown.
        difference: the element that differs most.
    """

    problem: str
    reason: str = ""
    difference: str = ""

    @property
    def text(self) -> str:
        """Return the problem with what is known of it."""
        known = self.reason or self.difference
        return f"{self.problem}: {known}" if known else self.problem


def find_broken(
    title: str,
    whole: Tensor,
    slices: Sequence[Tensor],
    spot: Spot | None,
    bounds: Sequence[Bounds],
    *,
    is_written: bool,
) -> Broken | None:
    """Return why the slices of a tensor are not what the line claims, or None if they are.

    Args:
        title: what messages call the tensor, or the argument that is written to.
        whole: it, of the whole call.
        slices: it, of each slice.
        spot: where it has the dimension that is cut; None if it lacks it.
        bounds: of the slices.
        is_written: the op writes to it.
    """
    if spot is not None:
        return _side_by_side(title, whole, slices, spot, bounds)
    if is_written:
        return _alike(title, whole, slices)
    return _added(title, whole, slices)


def _side_by_side(
    title: str, whole: Tensor, slices: Sequence[Tensor], spot: Spot, bounds: Sequence[Bounds]
) -> Broken | None:
    difference = _difference(spot.join(slices, bounds), whole)
    if difference is None:
        return None
    problem = f"the slices of {title}, side by side, are not the whole"
    backwards = spot.join(slices[::-1], bounds[::-1])
    reason = "they are in the reverse order" if _is_near(backwards, whole) else ""
    return Broken(problem, reason, difference)


def _alike(title: str, whole: Tensor, slices: Sequence[Tensor]) -> Broken | None:
    if all(_is_near(one, whole) for one in slices):
        return None
    return Broken(f"slices write something else to {title}, which lacks the dimension, than the whole")


def _added(title: str, whole: Tensor, slices: Sequence[Tensor]) -> Broken | None:
    total = torch.stack(tuple(slices)).sum(0, dtype=whole.dtype)
    difference = _difference(total, whole)
    if difference is None:
        return None
    return Broken(f"the slices of {title} do not add up", _reason(whole, slices, total), difference)


def _reason(whole: Tensor, slices: Sequence[Tensor], total: Tensor) -> str:
    """Return what the whole is of the slices, if it is not their sum."""
    if all(_is_near(one, whole) for one in slices):
        return WHOLE
    if not whole.is_floating_point():
        return ""
    stacked = torch.stack(tuple(slices))
    if _is_near(total / len(slices), whole):
        return MEAN
    return next((reason for reason, combine in COMBINATIONS if _is_near(combine(stacked), whole)), "")


def _difference(found: Tensor, whole: Tensor) -> str | None:
    difference = find_difference([found], [whole], names=[""], factor=FACTOR)
    return None if difference is None else ("element " + str(difference)).removeprefix("element  = ")


def _is_near(found: Tensor, whole: Tensor) -> bool:
    return found.shape == whole.shape and _difference(found.to(whole.dtype), whole) is None


COMBINATIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("the whole is their maximum", lambda stacked: stacked.amax(0)),
    ("the whole is their minimum", lambda stacked: stacked.amin(0)),
    ("the whole is their product", lambda stacked: stacked.prod(0)),
    ("the whole is their logsumexp", lambda stacked: stacked.logsumexp(0)),
)


class UncutError(Exception):
    """A call cannot be cut along a dimension of which its line claims that it can; the text says why."""


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A call that is not cut, and what came of it.

    Attributes:
        record: the op.
        function: computes it.
        line: of the call.
        sizes: of its names.
        values: its arguments.
        outcome: of the call.
        cotangents: for each result that has a gradient.
        gradients: of the inputs that require one.
    """

    record: OpRecord
    function: NamedFunction
    line: Line
    sizes: Sizes
    values: Values
    outcome: SlicedOutcome
    cotangents: Mapping[Part, Tensor]
    gradients: Mapping[Part, Tensor]

    @property
    def parts(self) -> dict[Part, Tensor]:
        """Return everything that is compared."""
        return {**self.outcome.results, **self.gradients}

    def dimensions(self) -> Iterator[CutDimension]:
        """Yield those along which its line claims that it can be cut."""
        yield from cut_dimensions(self.line, self.sizes, self.record.declaration.schema)

    def item(self, part: Part) -> Item:
        """Return what the line declares of a tensor."""
        kind, (name, _) = part
        return next(item for item in (self.line.outputs if kind == "output" else self.line.inputs) if item.name == name)


def compare_slices(whole: WholeCall, dimension: CutDimension) -> Finding | None:
    """Return whether a call is what its slices along a dimension are together.

    Returns:
        None if the dimension is too small to be cut, or no tensor has it.
    """
    try:
        slicing = _Slicing(whole, dimension)
        cuts = list(cuts_of(slicing.totals)) if slicing.totals else []
        for cut in cuts:
            broken = slicing.find_broken(cut)
            if broken:
                return _failure(dimension, broken, whole.line)
    except UncutError as reason:
        return failed(f"along {dimension.label} {reason}")
    return PASSED if cuts else None


class _Slicing:
    """Cuts one call along one dimension."""

    def __init__(self, whole: WholeCall, dimension: CutDimension) -> None:
        self._whole, self._dimension = whole, dimension
        self._inputs: dict[Key, Spot | None] = {
            key: self._spot(item, key, tensor)
            for item in whole.line.inputs
            for key, tensor in tensors_of(item.name, whole.values[item.name])
        }
        self._spots = {part: self._spot(whole.item(part), part[1], x) for part, x in whole.parts.items()}

    @property
    def totals(self) -> dict[int, int]:
        """Return the size of the dimension, by position of the lists where it is local to them."""
        is_local = self._dimension.name in self._whole.sizes.local
        positions = [position if is_local else 0 for (_, position), spot in self._inputs.items() if spot is not None]
        return {position: self._dimension.size(self._whole.sizes, position) for position in positions}

    def find_broken(self, cut: SliceCut) -> list[tuple[Part, Broken]]:
        """Return the claims that do not hold for one way to cut."""
        slices = [self._run(cut, index) for index in range(cut.count)]
        found = []
        for part, tensor in self._whole.parts.items():
            parts, bounds = [one[part] for one in slices], cut.at(part[1][1])
            is_written = part[0] == "written"
            title = f"'{part[1][0]}'" if is_written and self._spots[part] is None else _title(part)
            broken = find_broken(title, tensor, parts, self._spots[part], bounds, is_written=is_written)
            found += [] if broken is None else [(part, broken)]
        return found

    def _spot(self, item: Item, key: Key, tensor: Tensor) -> Spot | None:
        return self._dimension.find_spot(item, tensor.shape, self._whole.sizes, key[1])

    def _run(self, cut: SliceCut, index: int) -> dict[Part, Tensor]:
        """Return everything that is compared, of one slice."""
        whole, values = self._whole, dict(self._whole.values)
        for item in whole.line.inputs:
            tensors = {
                key: _slice(tensor, self._inputs[key], cut, key, index)
                for key, tensor in tensors_of(item.name, values[item.name])
            }
            values[item.name] = with_tensors(values[item.name], item.name, tensors)
        try:
            outcome = run(whole.record, whole.function, values)
        except Exception as error:  # whatever the op raises for a slice, it takes the whole
            raise self._raised("the op", error) from error
        self._check_shapes(outcome, cut, index)
        cotangents = {
            part: _slice(cotangent, self._spots[part], cut, part[1], index)
            for part, cotangent in whole.cotangents.items()
        }
        try:
            return {**outcome.results, **outcome.gradients(cotangents)}
        except Exception as error:  # as above
            raise self._raised("its backward", error) from error

    def _check_shapes(self, outcome: SlicedOutcome, cut: SliceCut, index: int) -> None:
        """Raise if a result of a slice has not the shape of a slice: autograd would refuse its cotangent."""
        whole = self._whole.outcome.results
        for part, tensor in outcome.results.items():
            if part not in whole:
                raise UncutError(f"{_title(part)} of a slice has more tensors than that of the whole")
            wanted = _slice(whole[part], self._spots[part], cut, part[1], index).shape
            if tensor.shape != wanted:
                shapes = f"has the shape {tuple(tensor.shape)}, where the line declares {tuple(wanted)}"
                raise UncutError(f"{_title(part)} of a slice {shapes}. {self._bracket()}")
        if missing := [part for part in whole if part not in outcome.results]:
            raise UncutError(f"{_title(missing[0])} of a slice has fewer tensors than that of the whole")

    def _raised(self, what: str, error: Exception) -> UncutError:
        return UncutError(f"{what} raises for a slice: {first_line(error).rstrip('.')}. {self._bracket()}")

    def _bracket(self) -> str:
        return f"Write [{self._dimension.written}] if the op computes along it"


def _slice(tensor: Tensor, spot: Spot | None, cut: SliceCut, key: Key, index: int) -> Tensor:
    if spot is None:
        return tensor
    return spot.slice(tensor.detach(), cut.at(key[1])[index]).requires_grad_(tensor.requires_grad)


def _title(part: Part) -> str:
    kind, (name, _) = part
    return {"output": "", "written": "the new value of ", "gradient": "the gradient of "}[kind] + f"'{name}'"


def _failure(dimension: CutDimension, broken: Sequence[tuple[Part, Broken]], line: Line) -> Finding:
    """Return the failure of one dimension: the first claim that does not hold, and what else is not the whole."""
    ((kind, _), first), *rest = broken
    title = _title(broken[0][0])
    others = dict.fromkeys(_title(part) for part, _ in rest if part[0] == kind and _title(part) != title)
    also = f"; the same holds for {', '.join(others)}" if others else ""
    return failed(
        f"along {dimension.label} {first.text}{also}. {_advice(kind, first, dimension, line)}", cause=first.reason
    )


def _advice(kind: str, broken: Broken, dimension: CutDimension, line: Line) -> str:
    bracket = f"[{dimension.written}]"
    if kind == "gradient":
        is_sum = ", which is a sum over all slices" if broken.reason == MEAN else ""
        return f"The outputs are right: correct the gradient{is_sum}, or write {bracket}"
    product = next((dim for dim in line.dims() if len(dim.factors) > 1 and dimension.name in dim.factors), None)
    if product is not None:
        return f"Write {bracket}, or the factors of {product} in another order: the outermost is the first"
    return f"Write {bracket}{ALSO.get(broken.reason, '')}"


ALSO: Mapping[str, str] = {MEAN: ", or return the sum", WHOLE: ", or return it from another op"}
"""What else may be done about an output."""


def whole_call(
    described: DescribedOp, record: OpRecord, function: NamedFunction, sample: Sample
) -> tuple[WholeCall, str]:
    """Return a call in float64, if the op takes it, and why its gradients are left out; empty if they are not."""
    refused = ""
    try:
        found = _in_double(record, function, sample)
    except GradientError as error:  # the forward is compared all the same
        refused = first_line(error)
        found = _in_double(record, function, sample.map(Tensor.detach))
    values, outcome = values_of(record, found[0]), found[1]
    cotangents: dict[Part, Tensor] = {
        part: torch.randn_like(tensor, memory_format=torch.contiguous_format)
        for part, tensor in outcome.results.items()
        if tensor.requires_grad
    }
    sizes = described.sizes(values)
    line = sizes.line
    try:
        gradients = outcome.gradients(cotangents)
    except Exception as error:
        refusal = find_refusal(error)
        if refusal is None:
            raise
        return WholeCall(record, function, line, sizes, values, outcome, {}, {}), refusal
    return WholeCall(record, function, line, sizes, values, outcome, cotangents, gradients), refused


def _in_double(record: OpRecord, function: NamedFunction, sample: Sample) -> tuple[Sample, SlicedOutcome]:
    """Return a sample and its outcome, in float64 unless the op refuses that."""
    double = sample.map(lambda tensor: to_double(tensor.detach()).requires_grad_(tensor.requires_grad))
    try:
        return double, run(record, function, values_of(record, double))
    except Exception:  # noqa: BLE001  # it takes the sample as it is, or raises again
        return sample, run(record, function, values_of(record, sample))
