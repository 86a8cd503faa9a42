"""One sample -> calls it does not make itself: other sizes and dtypes.

Which of them an op takes that its author did not declare is found on the CPU: an accelerator does not refuse an index
beyond a tensor, and fails everything that the process does on it afterwards.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.sweeps import elements_of, free_sizes, pinned_sizes, resized, sizes_of
from custom_autograd.verification.harness.targets import Function, Target, TargetArgument, call_on

LARGE = 257
"""Above a block of 256, and a prime: the last block is not full."""

TILES = (2, 8, 16, 32, 64, 256)
"""The sizes of vectors and blocks: a kernel may take another way where they divide."""

VARIED = ("size", "all sizes", "no dimensions")
"""How the labels of `sizes` begin: an op may refuse those."""

MOST_ELEMENTS = 2**20
"""In one tensor of a variant: a sample of one size in three dimensions would else grow beyond any memory."""


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
        changes.append((f"size {size} -> {LARGE}", {**cut_sizes(found, size), size: LARGE}))
    if len(found) > 1:
        changes.append(("all sizes 3", dict.fromkeys(found, 3)))
    for label, change in changes:
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield label, resized(sample, change)
            names = followed(sample, change, arguments)
            if names:
                yield f"{label}, with {names}", resized(sample, change, with_numbers=True)


def followed(sample: Sample, change: Mapping[int, int], arguments: Sequence[TargetArgument]) -> str:
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
        change = {**cut_sizes(found, size), size: length}
        if elements_of(sample, change) <= MOST_ELEMENTS:
            yield f"size {size} -> {length}", resized(sample, change)


def cut_sizes(found: Sequence[int], kept: int) -> dict[int, int]:
    """Return the other sizes cut to 3 at most, if they stay different from each other."""
    small = {other: min(other, 3) for other in found if other != kept}
    return small if len(set(small.values())) == len(small) else {}


FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
"""Without uint8: as an index it is a mask."""


def floating(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its floating tensors in each floating dtype but their own; nothing where there is none."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point()}
    for dtype in FLOATING:
        if given and given != {dtype}:
            yield dtype, _with(sample, dtype, given)


def kinds(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its floating and complex numbers made complex, then made integers, one dtype at a time."""
    given = {x.dtype for x in sample.tensors() if x.is_floating_point() or x.is_complex()}
    for dtype in (*COMPLEX, torch.int64, torch.int32):
        if given and given != {dtype}:
            yield dtype, _with(sample, dtype, given)


def integers(sample: Sample) -> Iterator[tuple[torch.dtype, Sample]]:
    """Yield the call with its integer tensors in each integer dtype that holds their numbers."""
    given = [x for x in sample.tensors() if x.dtype in INTEGERS]
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        is_held = all(x.numel() == 0 or (int(x.min()) >= limits.min and int(x.max()) <= limits.max) for x in given)
        if given and is_held and {x.dtype for x in given} != {dtype}:
            yield dtype, _with(sample, dtype, {x.dtype for x in given})


def _with(sample: Sample, dtype: torch.dtype, given: Collection[torch.dtype]) -> Sample:
    """Return the call with the tensors of some dtypes in another one, and copies of all others."""
    return sample.map(lambda x: _cast(x, dtype) if x.dtype in given else x.detach().clone())


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.detach().clone()
    found = tensor.detach()
    found = found.real if found.is_complex() and not dtype.is_complex else found
    return found.to(dtype, copy=True)


def within_domain(
    target: Target, sample: Sample, variants: Iterable[tuple[str, Sample]]
) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample that can be called on its device, with their labels."""
    judge = _judge(target, sample)
    for label, variant in variants:
        if judge is None or _takes(judge, variant):
            yield label, variant


def is_within_domain(target: Target, sample: Sample, variant: Sample) -> bool:
    """Return False if the op, or else its reference, raises for a variant on the CPU, where it takes the sample.

    True for samples on the CPU, where a call that is refused does no harm.
    """
    return any(within_domain(target, sample, [("", variant)]))


def _judge(target: Target, sample: Sample) -> Function | None:
    """Return what is asked on the CPU; None if the sample is there, or nothing takes it there."""
    if all(tensor.device.type == "cpu" for tensor in sample.tensors()):
        return None
    functions = (function for function in (target.full, target.reference) if function is not None)
    return next((function for function in functions if _takes(function, sample)), None)


def _takes(function: Function, sample: Sample) -> bool:
    with torch.no_grad(), kept_random_state(), contextlib.suppress(Exception):
        call_on(function, sample.map(lambda tensor: tensor.detach().clone().cpu()))
        return True
    return False
