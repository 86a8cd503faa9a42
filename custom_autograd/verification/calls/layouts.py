"""The same call with its numbers elsewhere in memory, where what lies between them is nan, so that reading it shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.sweeps import copy, is_index

Layout: TypeAlias = Callable[[Tensor], "Tensor | None"]
"""Lays a tensor out; None where it does not fit."""

EXPANDED = "expanded along its first dimension"
"""The one that changes numbers."""

REORDERED = ("transposed", "channels-last", EXPANDED)
"""How the texts of layouts end that do not name their order, and in which torch fills new tensors in another one."""


def of(tensor: Tensor) -> Iterator[tuple[str, Layout]]:
    """Yield the layouts of tensors of so many dimensions, and what messages call them."""
    dims = tensor.dim()
    yield "with rows apart", rows_apart
    yield "transposed", transposed
    for order in itertools.islice(itertools.permutations(range(dims)), 1, MOST_ORDERS) if dims > 2 else ():
        yield f"in memory in the order {order}", partial(ordered, order=order)
    for dim in range(dims):
        yield f"with a step of 2 along dimension {dim}", partial(stepped, dim=dim)
    for dim in range(dims):
        yield f"as a slice of dimension {dim}", partial(narrowed, dim=dim)
    yield EXPANDED, expanded
    yield "that begins inside its memory", offset
    yield "channels-last", channels_last
    yield "lazily conjugated", conjugated
    yield "lazily negated", negated


MOST_ORDERS = 7


def rows_apart(tensor: Tensor) -> Tensor:
    """Return the last dimension dense, and every other spaced unevenly, as a slice of a larger tensor has them."""
    return _inside(tensor, [size + (3 if dim == tensor.dim() - 1 else 1) for dim, size in enumerate(tensor.shape)])


def narrowed(tensor: Tensor, dim: int) -> Tensor | None:
    """Return a slice of a tensor that is larger along one dimension."""
    if dim >= tensor.dim():
        return None
    return _inside(tensor, [size + (2 if at == dim else 0) for at, size in enumerate(tensor.shape)])


def _inside(tensor: Tensor, shape: list[int]) -> Tensor:
    found = _memory(tensor, shape)[tuple(slice(0, size) for size in tensor.shape)]
    return found.copy_(tensor.detach())


def stepped(tensor: Tensor, dim: int) -> Tensor | None:
    """Return every second of a tensor that is larger along one dimension."""
    if dim >= tensor.dim():
        return None
    shape = [2 * size + 1 if at == dim else size for at, size in enumerate(tensor.shape)]
    found = _memory(tensor, shape)[(slice(None),) * dim + (slice(1, None, 2),)]
    return found.copy_(tensor.detach())


def offset(tensor: Tensor) -> Tensor:
    """Return it one element into larger memory: no address is a multiple of 16 bytes."""
    return _memory(tensor, [tensor.numel() + 2])[1:-1].view(tensor.shape).copy_(tensor.detach())


def ordered(tensor: Tensor, order: tuple[int, ...]) -> Tensor | None:
    """Return it with its dimensions in another order in memory."""
    if len(order) != tensor.dim():
        return None
    back = [order.index(dim) for dim in range(len(order))]
    return tensor.detach().permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _memory(tensor: Tensor, shape: list[int]) -> Tensor:
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return tensor.new_full(shape, float("nan")) if is_number else tensor.new_zeros(shape)


def transposed(tensor: Tensor) -> Tensor | None:
    """Return it with the last two dimensions swapped in memory; None below two dimensions."""
    return None if tensor.dim() < 2 else tensor.detach().mT.clone(memory_format=torch.contiguous_format).mT


def sliced(tensor: Tensor) -> Tensor | None:
    """Return every second element of larger memory, which begins before them; None without dimensions."""
    return stepped(tensor, tensor.dim() - 1) if tensor.dim() else None


def expanded(tensor: Tensor) -> Tensor | None:
    """Return the first row for every row, with stride 0; None if there is one row or none."""
    if tensor.dim() == 0 or tensor.shape[0] < 2:
        return None
    return tensor.detach()[:1].clone().expand(tensor.shape)


def channels_last(tensor: Tensor) -> Tensor | None:
    """Return it with the channels innermost in memory; None for other than four or five dimensions."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.detach().clone(memory_format=formats[tensor.dim()]) if tensor.dim() in formats else None


def conjugated(tensor: Tensor) -> Tensor | None:
    """Return it as a lazily conjugated view; None for real numbers."""
    return tensor.detach().conj().clone().resolve_conj().conj() if tensor.is_complex() else None


def negated(tensor: Tensor) -> Tensor | None:
    """Return it as a view that is lazily negated; None for what complex numbers cannot hold."""
    if tensor.dtype not in (torch.float32, torch.float64):
        return None
    return torch.complex(torch.zeros_like(tensor), -tensor.detach()).conj().imag


ALL: tuple[tuple[str, Layout], ...] = (
    ("transposed", transposed),
    ("sliced", sliced),
    ("expanded", expanded),
    ("offset", offset),
    ("channels-last", channels_last),
    ("conjugated", conjugated),
    ("negated", negated),
)


def of_all(sample: Sample, *, written: Collection[int] = ()) -> Iterator[tuple[str, Sample]]:
    """Yield the sample as it is, then with all of its tensors in each of a few layouts.

    Args:
        sample: what to vary.
        written: positions of tensors that the op mutates; they are never expanded, because memory that overlaps itself
            cannot be written to.

    Yields:
        What to call the variant, and the variant; its tensors are copies that do not require grad.
    """
    yield "as given", copy(sample)
    for label, change in ALL:
        changed = [
            None if x.layout != torch.strided or (change is expanded and (i in written or is_index(x))) else change(x)
            for i, x in enumerate(sample.tensors())
        ]
        if any(tensor is not None for tensor in changed):
            pairs = zip(changed, sample.tensors(), strict=True)
            yield label, sample.with_tensors([old.detach().clone() if new is None else new for new, old in pairs])
