"""Finds which dimensions of an op's tensors belong together, by calling it with some of them smaller.

shrunk alone, accepted                       a dimension of its own
refused, but accepted with others shrunk     one name: those without which it is refused again
only if another loses m for each one         that one is a product: m is a factor, which may have a name of its own
an output shrinks with them                  it has that name
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from custom_autograd.core.errors import ShapeError
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import is_within_domain
from custom_autograd.verification.harness.targets import Target, call_on

LEAST = 2
"""The least size of a dimension that can be shrunk."""

MOST_TRIED = 10
"""Up to so many other dimensions of a size, all combinations are tried: that is a thousand calls."""


@dataclass(frozen=True, slots=True)
class Place:
    """A dimension of a tensor.

    Attributes:
        tensor: its position among the tensors of a sample, or among the outputs.
        dim: counted from the first.
    """

    tensor: int
    dim: int


@dataclass(slots=True)
class Group:
    """Dimensions that must have one size.

    Attributes:
        size: in the sample.
        inputs: the places, each with how many times the size it has.
        outputs: the same for outputs.
    """

    size: int
    inputs: dict[Place, int]
    outputs: dict[Place, int] = field(default_factory=dict[Place, int])


def find_groups(target: Target, sample: Sample) -> list[Group]:
    """Return the groups of dimensions of one sample, in the order of its tensors.

    Raises:
        Exception: the op refuses the sample itself.
    """
    probe = _Probe(target, sample)
    places = sorted(probe.places(), key=lambda place: probe.size(place))
    groups: list[Group] = []
    for place in places:
        if any(place in group.inputs for group in groups):
            continue
        found = probe.group_of(place, [one for one in places if not any(one in group.inputs for group in groups)])
        if found is not None:
            groups.append(found)
    groups += [group for place in places for group in probe.factor_of(place, groups)]
    groups += [group for place in places for group in probe.multiple_of(place, groups)]
    return sorted(groups, key=lambda group: min((place.tensor, place.dim) for place in group.inputs))


def shapes_of_outputs(target: Target, sample: Sample) -> list[tuple[int, ...]]:
    """Return the shapes of what a call returns, hidden outputs included."""
    with torch.no_grad():
        return [tuple(output.shape) for output in call_on(target.full, sample)]


class _Probe:
    """Calls one op with smaller tensors."""

    def __init__(self, target: Target, sample: Sample) -> None:
        self._target = target
        self._sample = sample.map(lambda tensor: tensor.detach())
        self._tensors = self._sample.tensors()
        self._whole = self._shapes({})

    def places(self) -> Iterator[Place]:
        """Yield every dimension of an input that can be shrunk."""
        for number, tensor in enumerate(self._tensors):
            yield from (Place(number, dim) for dim in range(tensor.dim()) if tensor.shape[dim] >= LEAST)

    def size(self, place: Place) -> int:
        """Return the size of a dimension."""
        return self._tensors[place.tensor].shape[place.dim]

    def group_of(self, place: Place, places: Sequence[Place]) -> Group | None:
        """Return the smallest group that a dimension belongs to; None if it cannot be shrunk."""
        size = self.size(place)
        multiples = [other for other in places if other != place and self.size(other) % size == 0]
        others = {other: self.size(other) // size for other in multiples}
        equal = [other for other, factor in others.items() if factor == 1]
        if self._is_accepted({place: 1}):
            return self._with_outputs(Group(size, {place: 1}))
        if self._is_accepted(dict.fromkeys((place, *equal), 1)):
            return self._smallest({place: 1}, dict.fromkeys(equal, 1))
        if self._is_accepted({place: 1, **others}):
            return self._smallest({place: 1}, others)
        return None

    def factor_of(self, place: Place, groups: Sequence[Group]) -> Iterator[Group]:
        """Yield a group for the other factor of a product, if that can be another one."""
        product = next((group for group in groups if group.inputs.get(place, 1) > 1), None)
        if product is None or product.inputs[place] < LEAST:
            return
        same = {other: product.size for other, factor in product.inputs.items() if factor == product.inputs[place]}
        if self._is_accepted(same):
            yield self._with_outputs(Group(product.inputs[place], same))

    def multiple_of(self, place: Place, groups: Sequence[Group]) -> Iterator[Group]:
        """Yield a group for the other factor of a product of a group that can be any divisor of it."""
        size = self.size(place)
        if any(place in group.inputs for group in groups):
            return
        for group in groups:
            if size % group.size == 0 and size > group.size and self._is_accepted({place: group.size}):
                factor = size // group.size
                other = self._with_outputs(Group(factor, {place: group.size}))
                group.inputs[place] = factor
                group.outputs |= {output: factor * (less // group.size) for output, less in other.outputs.items()}
                yield other
                return

    def _smallest(self, own: Mapping[Place, int], others: Mapping[Place, int]) -> Group:
        """Return the group with as few others as are accepted; of many, those without which it is refused."""
        size = self.size(next(iter(own)))
        if len(others) <= MOST_TRIED:
            for count in range(1, len(others) + 1):
                for chosen in itertools.combinations(others, count):
                    candidate = {**own, **{place: others[place] for place in chosen}}
                    if self._is_accepted(candidate):
                        return self._with_outputs(Group(size, candidate))
        kept = dict(others)
        for place in others:
            fewer = {one: factor for one, factor in kept.items() if one != place}
            if self._is_accepted({**own, **fewer}):
                kept = fewer
        return self._with_outputs(Group(size, {**own, **kept}))

    def _with_outputs(self, group: Group) -> Group:
        shrunk = self._shapes(group.inputs)
        for number, (before, after) in enumerate(zip(self._whole, shrunk, strict=True)):
            for dim, (old, new) in enumerate(zip(before, after, strict=False)):
                if old > new:
                    group.outputs[Place(number, dim)] = old - new
        return group

    def _is_accepted(self, less: Mapping[Place, int]) -> bool:
        try:
            shrunk = self._shapes(less)
        except Exception:  # noqa: BLE001 - whatever the op raises, it does not take these sizes
            return False
        return [len(shape) for shape in shrunk] == [len(shape) for shape in self._whole]

    def _shapes(self, less: Mapping[Place, int]) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs, hidden ones too, of a call with dimensions that are smaller by so much.

        Raises:
            Exception: the op refuses the call.
        """
        tensors = list(self._tensors)
        for place, count in less.items():
            tensor = tensors[place.tensor]
            tensors[place.tensor] = tensor.narrow(place.dim, 0, max(0, tensor.shape[place.dim] - count))
        call = self._sample.with_tensors([tensor.clone() for tensor in tensors])
        if not is_within_domain(self._target, self._sample, call):
            raise ShapeError("the op refuses such sizes on the CPU")
        return shapes_of_outputs(self._target, call)
