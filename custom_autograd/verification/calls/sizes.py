"""The same call with other sizes: nothing, one, vectors, warps and tiles, one next to each, and no dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import (
    cut_sizes,
    find_shapes,
    followed,
    is_elementwise,
    is_within_domain,
    without_dimensions,
)
from custom_autograd.verification.harness.sweeps import (
    elements_of,
    free_sizes,
    has_arithmetic,
    is_ordered,
    pinned_sizes,
    resized,
    sizes_of,
)
from custom_autograd.verification.harness.targets import Target

Resize: TypeAlias = Callable[[Sample], "Sample | None"]
"""Gives a call other sizes; None where they do not fit."""

LONG = 1025
OTHER_SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 129, 256, 257, LONG)

GROWN = (3, 2)
"""The sizes that replace 1: a batch of one hides that a gradient is not summed over it, and one group all others."""

MOST = 2**14
"""Elements of the largest tensor of a drawn call."""


def of(target: Target, sample: Sample) -> Iterator[tuple[str, str, Resize]]:
    """Yield what is changed, what messages call it, and what changes it."""
    has_judge = target.reference is not None
    free, least = (
        sorted(free_sizes(sample, has_judge=has_judge)),
        int(not has_judge),
    )  # which says what becomes of nothing
    for size in free:
        yield from (_one(target, size, other) for other in OTHER_SIZES if other != size and other >= least)
    if len(free) > 1:
        yield "sizes", "all sizes 3", partial(_resized, sizes=dict.fromkeys(free, 3), has_judge=has_judge)
        multiples = {size: 8 * (position + 1) for position, size in enumerate(free)}
        yield "sizes", "all sizes multiples of 8", partial(_resized, sizes=multiples, has_judge=has_judge)
    shared = sizes_of(sample) - set(free) - pinned_sizes(sample, has_judge=has_judge)
    for size in sorted(shared) if has_judge else ():  # which says whether they may differ
        yield from (_one(target, size, other) for other in (0, 1, size + 1, 257))
    numbers = {value for value in (*sample.args, *sample.kwargs.values()) if type(value) is int}
    for size in sorted(numbers & sizes_of(sample)):
        for other in sorted({least, 1, size - 1, size + 1, 17, 257} - {size}):
            change = {size: other}
            text = f"size {size} -> {other}, with {followed(sample, change, target.arguments)}"
            yield f"size {size}", text, partial(_resized, sizes=change, with_numbers=True)
    if target.reference is not None and any(1 in tensor.shape for tensor in sample.tensors()):
        yield from (("size 1", f"size 1 -> {grown}", partial(_grown, target, grown)) for grown in GROWN)
    if is_elementwise(target, sample):
        yield "sizes", "no dimensions", _undimensioned


def _one(target: Target, size: int, other: int) -> tuple[str, str, Resize]:
    change = partial(_resized, sizes={size: other}, has_judge=target.reference is not None)
    if 0 < other < min(size, 4):
        change = partial(_unless_broadcast, target, size, change)
    return f"size {size}", f"size {size} -> {other}", change


def _unless_broadcast(target: Target, size: int, change: Resize, sample: Sample) -> Sample | None:
    """Return a call of a smaller size; None if the reference takes it only because a dimension of 1 is broadcast."""
    reference = target.visible_reference
    larger = (resized(sample, {size: other}, has_judge=True) for other in (size + 1, 2 * size, 3 * size))
    is_taken = reference is None or any(find_shapes(target, reference, variant) is not None for variant in larger)
    return change(sample) if is_taken else None


def _grown(target: Target, size: int, sample: Sample) -> Sample | None:
    """Return a call with another size for 1; None if that is but broadcast.

    It is not if a result has the new size too, or if the reference takes it although no other dimension has it.
    """
    reference = target.visible_reference
    if reference is None or elements_of(sample, {1: size}) > MOST:
        return None
    grown = resized(sample, {1: size}).map(jittered)
    if not is_within_domain(target, sample, grown):
        return None
    before, after = find_shapes(target, reference, sample), find_shapes(target, reference, grown)
    if before is None or after is None:
        return None
    if before == after:
        return None if size in sizes_of(sample) else grown
    is_alike = all(any(_has_grown(shape, other, size) for other in before) for shape in after)
    return grown if is_alike else None


def _has_grown(shape: Sequence[int], before: Sequence[int], grown: int) -> bool:
    """Return True if a shape is what another one was, but for sizes of 1."""
    alike = (size == other or (size == grown and other == 1) for size, other in zip(shape, before, strict=False))
    return len(shape) == len(before) and all(alike)


def _resized(
    sample: Sample, sizes: Mapping[int, int], *, with_numbers: bool = False, has_judge: bool = False
) -> Sample | None:
    found = sizes_of(sample)
    if not found & set(sizes):
        return None
    if elements_of(sample, sizes) > MOST:
        kept = next(iter(sizes))
        sizes = {**cut_sizes(sorted(found - pinned_sizes(sample, has_judge=has_judge)), kept), **sizes}
    if elements_of(sample, sizes) > MOST:
        return None
    return resized(sample, sizes, with_numbers=with_numbers, has_judge=has_judge).map(jittered)


def _undimensioned(sample: Sample) -> Sample | None:
    return without_dimensions(sample) if all(x.numel() for x in sample.tensors()) else None


def jittered(tensor: Tensor) -> Tensor:
    """Return the tensor with numbers that differ where they were repeated: up to a tenth smaller, signs as they are."""
    if not has_arithmetic(tensor) or tensor.layout != torch.strided or is_ordered(tensor):
        return tensor
    generator = torch.Generator().manual_seed(tensor.numel())
    shrunk = 1 - 0.1 * torch.rand(tensor.shape, generator=generator, device="cpu").to(tensor.device)
    return (tensor.detach() * shrunk).to(tensor.dtype)
