"""A call that is cut along one dimension of its line, compared with the whole: outputs, written tensors, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.notation import Item, Line
from custom_autograd.shapes.unification import Sizes
from custom_autograd.verification.harness.base import PASSED, Finding, failed, first_line
from custom_autograd.verification.harness.slice_claims import MEAN, WHOLE, Broken, find_broken
from custom_autograd.verification.harness.sliced_calls import (
    NamedFunction,
    Part,
    SlicedOutcome,
    Values,
    run,
    tensors_of,
    with_tensors,
)
from custom_autograd.verification.harness.slices import CutDimension, Key, SliceCut, Spot, cuts_of


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

    def item(self, part: Part) -> Item:
        """Return what the line says of a tensor."""
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
        self._inputs = self._spots_of_inputs()
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

    def _spots_of_inputs(self) -> dict[Key, Spot | None]:
        whole = self._whole
        rows = [(item, tensors_of(item.name, whole.values[item.name])) for item in whole.line.inputs]
        return {key: self._spot(item, key, tensor) for item, tensors in rows for key, tensor in tensors}

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
                shapes = f"has the shape {tuple(tensor.shape)}, where the line says {tuple(wanted)}"
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
