"""Numbers of one tensor that are those of another, at which a comparison, a search or a rounding may jump.

A search that goes one element too far there reads nan, which is what lies around the tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample, range_of
from custom_autograd.verification.calls.layouts import offset
from custom_autograd.verification.harness.sweeps import is_ordered

Apply = Callable[[Sample], "Sample | None"]

MOST_PAIRS = 12
"""Of the tensors of one sample."""


def of(sample: Sample, names: Sequence[str]) -> Iterator[tuple[str, Apply]]:
    """Yield the call with some numbers of one tensor copied to another, then with halves of a number in it."""
    tensors = sample.tensors()
    reals = [i for i, x in enumerate(tensors) if x.is_floating_point() and x.layout == torch.strided and x.numel()]
    for one, other in itertools.islice(itertools.permutations(reals, 2), MOST_PAIRS):
        if is_ordered(tensors[one]):
            continue
        change = partial(_put, one=one, other=other, bounds=range_of(tensors[one]))
        yield f"'{names[one]}' with numbers of '{names[other]}'", partial(change, numbers=_ends)
        if tensors[other].numel() == 1:
            yield f"'{names[one]}' with halves of '{names[other]}', a power of 2", partial(change, numbers=_halves)


def _ends(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the tensor, and its first, middle and last numbers."""
    flat = tensor.reshape(-1)
    return tensor, flat[[0, flat.numel() // 2, -1]]


def _halves(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return a power of 2 near the only number, whose reciprocal is exact, and odd halves of it; None for more."""
    if tensor.numel() != 1:  # another change has made it larger
        return None
    size = tensor.abs().clamp(min=2.0**-8)
    power = torch.exp2(size.log2().round()) * torch.where(tensor < 0, -1, 1).to(tensor.dtype)
    return power, power.reshape(1) * torch.tensor([0.5, 1.5, 2.5], dtype=tensor.dtype, device=tensor.device)


def _put(
    sample: Sample,
    one: int,
    other: int,
    bounds: tuple[float, float] | None,
    numbers: Callable[[Tensor], tuple[Tensor, Tensor] | None],
) -> Sample | None:
    tensors = [x.detach() for x in sample.tensors()]
    if not tensors[one].numel() or not tensors[other].numel() or tensors[one].dtype != tensors[other].dtype:
        return None
    pair = numbers(tensors[other])
    if pair is None:
        return None
    tensors[other], chosen = pair
    if bounds is not None and not bool(((chosen >= bounds[0]) & (chosen <= bounds[1])).all()):
        return None
    tensors[one] = tensors[one].clone(memory_format=torch.contiguous_format)
    flat = tensors[one].view(-1)
    places = [0, flat.numel() // 2, flat.numel() - 1]
    flat[places] = chosen.to(flat.device)
    is_real = [x.is_floating_point() and x.layout == torch.strided for x in tensors]
    return sample.with_tensors([offset(x) if real else x for x, real in zip(tensors, is_real, strict=True)])
