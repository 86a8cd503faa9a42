"""One sample -> calls it does not make itself: other magnitudes, zeros and ties, other scalars, other sizes."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.named_arguments import TargetArgument
from custom_autograd.verification.harness.sweeps import elements_of, free_sizes, pinned_sizes, resized, sizes_of

LARGE = 257
"""Above a block of 256, and a prime: the last block is not full."""

TILES = (2, 8, 16, 32, 64, 256)
"""The sizes of vectors and blocks: a kernel may take another way where they divide."""

VARIED = ("size", "all sizes", "no dimensions")
"""How the labels of `sizes` begin: an op may refuse those."""

MOST_ELEMENTS = 2**20
"""In one tensor of a variant: a sample of one size in three dimensions would else grow beyond any memory."""


def values(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the call with other floating numbers in it; a rule that is right at one point only fails at another.

    Yields:
        What to call the variant, and the variant. Signs stay, so that what must be positive stays so, or becomes 0.
    """
    for label, change in CHANGES:
        yield label, sample.map(functools.partial(_changed, change=change))


def _changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
        return tensor
    return change(tensor.detach()).requires_grad_(tensor.requires_grad)


def scalars(sample: Sample, arguments: Sequence[TargetArgument]) -> Iterator[tuple[str, Sample]]:
    """Yield the call with one float, bool or dimension changed, whether it is given or left to its default.

    A forgotten factor shows only where it is not 1.

    Yields:
        What to call the variant, such as "alpha=0.7", and the variant.
    """
    for position, argument in enumerate(arguments):
        is_positional = position < len(sample.args)
        value = sample.args[position] if is_positional else sample.kwargs.get(argument.name, argument.default)
        for other in () if argument.name in sample.kept else _others(value):
            if is_positional:
                args = (*sample.args[:position], other, *sample.args[position + 1 :])
                yield f"{argument.name}={other!r}", sample.with_arguments(args, sample.kwargs)
            else:
                kwargs = {**sample.kwargs, argument.name: other}
                yield f"{argument.name}={other!r}", sample.with_arguments(sample.args, kwargs)


def _others(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, float):
        near = (0.7 * value, -value) if value else ()
        return (*near, *(other for other in SCALARS if other not in (value, *near)))
    if isinstance(value, int) and -4 <= value <= 3:  # it may name a dimension
        return tuple(dim for dim in (0, -1) if dim != value)
    return ()


SCALARS = (0.0, 1.0, -1.0, 2.0, 250.0, 1e-3)
"""What a kernel may treat specially, or bound: a factor of 1 is left out, one of 0 divides, a power of 2 is a product,
and one of 250 is clamped."""


def sizes(sample: Sample, arguments: Sequence[TargetArgument] = ()) -> Iterator[tuple[str, Sample]]:
    """Yield the call with one size at a time changed to 0, 1, one more, and more than a block; then all equal.

    Integers among the arguments stay; where one equals a size, another variant changes it too, and its label says so.
    Sizes that a tensor of integers has or fixes stay, as do the tensors of integers.

    Args:
        sample: what to vary.
        arguments: the arguments in order, for their names.

    Yields:
        What to call the variant, such as "size 8 -> 0", and the variant; none that is larger than `MOST_ELEMENTS`.
    """
    found = sorted(sizes_of(sample) - pinned_sizes(sample))
    changes: list[tuple[str, dict[int, int]]] = []
    for size in found:
        changes += [(f"size {size} -> {other}", {size: other}) for other in (0, 1, size + 1)]
        changes.append((f"size {size} -> {LARGE}", {**_small(found, size), size: LARGE}))
    if len(found) > 1:
        changes.append(("all sizes 3", dict.fromkeys(found, 3)))
    for label, change in changes:
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield label, resized(sample, change)
            followed = _followed(sample, change, arguments)
            if followed:
                yield f"{label}, with {followed}", resized(sample, change, with_numbers=True)


def _followed(sample: Sample, change: Mapping[int, int], arguments: Sequence[TargetArgument]) -> str:
    """Return the integers that follow a size, such as "step=0"; empty if there is none."""
    names = [argument.name for argument in arguments]
    rows = [(names[i] if i < len(names) else f"args[{i}]", value) for i, value in enumerate(sample.args)]
    rows += list(sample.kwargs.items())
    found = [(name, value) for name, value in rows if isinstance(value, int) and not isinstance(value, bool)]
    return ", ".join(f"{name}={change[value]}" for name, value in found if change.get(value, value) != value)


def tile_sizes(sample: Sample, tiles: Sequence[int] = TILES) -> Iterator[tuple[str, Sample]]:
    """Yield the call with one size at a time what a vector or a tile is made of, then with all sizes multiples of 8."""
    found = sorted(free_sizes(sample))
    changes = [(f"size {size} -> {other}", {size: other}) for size in found for other in tiles if other != size]
    if len(found) > 1:
        changes.append(("all sizes multiples of 8", {size: 8 * (position + 1) for position, size in enumerate(found)}))
    for label, change in changes:
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield label, resized(sample, change)


def without_dimensions(sample: Sample) -> Sample:
    """Return the call with the first element of each tensor, as tensors without dimensions."""
    return sample.map(_first)


def _first(tensor: Tensor) -> Tensor:
    return tensor.detach().flatten()[0].clone().requires_grad_(tensor.requires_grad)


def long_sizes(sample: Sample, length: int) -> Iterator[tuple[str, Sample]]:
    """Yield the call with one size at a time made so long; others stay, or become small where that keeps them apart."""
    found = sorted(sizes_of(sample))
    for size in sorted(free_sizes(sample)):
        change = {**_small(found, size), size: length}
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield f"size {size} -> {length}", resized(sample, change)


def _small(found: Sequence[int], kept: int) -> dict[int, int]:
    """Return the other sizes cut to 3 at most, if they stay different from each other."""
    small = {other: min(other, 3) for other in found if other != kept}
    return small if len(set(small.values())) == len(small) else {}


def _rounded(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() else tensor.round()


def small_values(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the call with floating numbers so small that their squares are lost next to 1."""
    for label, change in SMALLER:
        yield label, sample.map(functools.partial(_changed, change=change))


SMALLER: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("a thousandth as large", lambda x: x * 1e-3),
    ("a millionth as large", lambda x: x * 1e-6),
)


CHANGES: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("20 times as large", lambda x: x * 20),
    ("1000 times as large", lambda x: x * 1000),
    ("zeros", torch.zeros_like),
    ("ties", _rounded),
)
