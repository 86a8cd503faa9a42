"""The arguments of a call by name: what a sample gives, what it leaves out, and the same keys in another order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Argument
from custom_autograd.verification.harness.agreement import find_shapes
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import is_index, sizes_of
from custom_autograd.verification.harness.targets import Target

Apply: TypeAlias = Callable[[Sample], Sample | None]
"""Makes one change of a sample; None where it does not fit."""


def declared_arguments(target: Target) -> list[Argument]:
    """Return the arguments of the schema that calls of the target give by the same name."""
    record, known = record_of(target), {row.name for row in target.arguments}
    return [] if record is None else [row for row in record.declaration.schema.arguments if row.name in known]


def value_of(target: Target, sample: Sample, name: str) -> object:
    """Return what a sample gives for an argument, or its default."""
    position = _position_of(target, name)
    default = target.arguments[position].default
    return sample.args[position] if position < len(sample.args) else sample.kwargs.get(name, default)


def with_value(target: Target, sample: Sample, name: str, value: object) -> Sample:
    """Return a sample that gives another value for an argument."""
    position = _position_of(target, name)
    if position < len(sample.args):
        return sample.with_arguments([*sample.args[:position], value, *sample.args[position + 1 :]], sample.kwargs)
    return sample.with_arguments(sample.args, {**sample.kwargs, name: value})


def scalars(target: Target, sample: Sample) -> Iterator[tuple[str, object]]:
    """Yield each float, bool or dimension with another value for it, whether it is given or left to its default.

    A forgotten factor shows only where it is not 1. A function of torch may say by `inplace` that it writes.
    """
    for argument in target.arguments:
        is_kept = argument.name in sample.kept or (argument.name == "inplace" and target.overload is None)
        for other in () if is_kept else _others(value_of(target, sample, argument.name)):
            yield argument.name, other


def _others(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, float):
        near = (0.7 * value, -value) if value else ()
        return (*near, *(other for other in SCALARS if other not in (value, *near)))
    if isinstance(value, int) and may_be_dimension(value):
        return tuple(dim for dim in (0, -1) if dim != value)
    return ()


def may_be_dimension(value: int) -> bool:
    """Return True for a number that may name a dimension of a tensor."""
    return -4 <= value <= 3


SCALARS = (0.0, 1.0, -1.0, 2.0, 250.0, 1e-3)
"""What a kernel may treat specially, or bound: a factor of 1 is left out, one of 0 divides, a power of 2 is a product,
and one of 250 is clamped."""


def other_integers(target: Target, sample: Sample, value: int) -> set[int]:
    """Return others for a number; without a reference, which says what is allowed, near ones, if nothing points."""
    if target.visible_reference is not None:
        return {1, 2, 3, value - 1, value + 1, 2 * value} - {value}
    is_bound = value in sizes_of(sample) or any(map(is_index, sample.tensors()))
    return {1, value - 1, value + 1} if value > 1 and not is_bound else set()


def _position_of(target: Target, name: str) -> int:
    return [row.name for row in target.arguments].index(name)


def without_optionals(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield, for each tensor of the sample that an op can do without, what is left out and the rest."""
    for argument in declared_arguments(target):
        value = value_of(target, sample, argument.name)
        if argument.is_optional and Sample(value).tensors():
            yield f"without '{argument.name}', ", with_value(target, sample, argument.name, None)
        elif argument.type == "Tensor?[]" and isinstance(value, list) and sum(x is not None for x in value) > 1:
            yield f"without '{argument.name}[0]', ", with_value(target, sample, argument.name, [None, *value[1:]])


def missing_optionals(target: Target, sample: Sample) -> frozenset[str]:
    """Return the optional tensors that a sample leaves out, by name."""
    rows = [row.name for row in declared_arguments(target) if row.type == "Tensor?"]
    return frozenset(name for name in rows if value_of(target, sample, name) is None)


def with_optionals(target: Target, sample: Sample, names: frozenset[str]) -> Iterator[tuple[str, Sample]]:
    """Yield, for each optional tensor that no sample gives, a call with the only one that the reference takes."""
    for name in sorted(names & missing_optionals(target, sample)) if target.visible_reference is not None else ():
        found = [given for given in _candidates(sample) if _is_taken(target, sample, name, given)]
        if len(found) == 1:  # of several shapes, some are only broadcast
            yield f"with '{name}' {tuple(found[0].shape)}, ", with_value(target, sample, name, found[0])


def _candidates(sample: Sample) -> Iterator[Tensor]:
    """Yield tensors that a sample could give: of one size, of the shape of another tensor, and masks of two sizes."""
    numbers = [x for x in sample.tensors() if can_have_gradient(x) and x.layout == torch.strided]
    found = sorted(sizes_of(sample))
    shapes = list(dict.fromkeys([*((size,) for size in found), *(tuple(x.shape) for x in numbers)]))
    generator = torch.Generator().manual_seed(len(shapes))
    for shape in shapes if numbers else ():
        drawn = 4 * torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") - 2
        yield drawn.to(device=numbers[0].device, dtype=numbers[0].dtype).requires_grad_()
    for shape in dict.fromkeys([*shapes, *itertools.product(found, found)]):
        drawn = torch.rand(shape, generator=generator, device="cpu") < MOST_OF_A_MASK
        yield drawn.to(numbers[0].device if numbers else None)


MOST_OF_A_MASK = 0.7


def _is_taken(target: Target, sample: Sample, name: str, given: Tensor) -> bool:
    """Return True if the reference and the op take a tensor, and the shapes of the results stay what they were."""
    reference, changed = target.visible_reference, with_value(target, sample, name, given)
    assert reference is not None
    shapes = find_shapes(target, reference, sample)
    return shapes is not None and shapes == find_shapes(target, reference, changed)


def listed(target: Target, sample: Sample) -> Iterator[tuple[str, str, Callable[[Sample], Sample | None]]]:
    """Yield an argument, what is changed, and the call with the first or last float of a list or dict 0, 1 or -1."""
    for row in target.arguments:
        items = [] if row.name in sample.kept else _items(value_of(target, sample, row.name))
        for key, value in dict([*items[:1], *items[-1:]]).items():
            for other in (0.0, 1.0, -1.0):
                if type(value) is float and value != other:
                    yield row.name, f"{row.name}[{key!r}]={other}", partial(_with_item, target, row.name, key, other)


def _items(value: object) -> list[tuple[object, object]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _with_item(target: Target, name: str, key: object, other: float, sample: Sample) -> Sample | None:
    value = value_of(target, sample, name)
    if isinstance(value, dict) and key in value:
        return with_value(target, sample, name, {**value, key: other})
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return with_value(target, sample, name, [*value[:key], other, *value[key + 1 :]])
    return None


def reordered(target: Target, sample: Sample) -> Iterator[tuple[str, Apply, bool]]:
    """Yield the call with the keys of a dict in reverse order, and whether it must give what the sample gives.

    It must where an earlier dict has the same keys: items belong together by key. Else the order may have a meaning.
    """
    earlier: list[frozenset[object]] = []
    for row in target.arguments:
        value = value_of(target, sample, row.name)
        if isinstance(value, dict) and len(value) > 1 and not target.written_positions(sample):
            is_paired = frozenset(value) in earlier
            if is_paired or target.visible_reference is not None:
                yield f"the keys of '{row.name}' in another order", partial(_reversed, target, row.name), is_paired
            earlier.append(frozenset(value))


def _reversed(target: Target, name: str, sample: Sample) -> Sample | None:
    value = value_of(target, sample, name)
    return with_value(target, sample, name, dict(reversed(value.items()))) if isinstance(value, dict) else None
