"""Whether the tensors that a variant writes to have a place in memory twice, or share one with others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_autograd.runtime.results import owns_memory


def has_several_elements_in_one_place(tensor: Tensor) -> bool:
    """Whether a tensor is expanded, so that one write would change several of its elements."""
    if tensor.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def find_same(tensors: dict[str, Tensor]) -> tuple[str, str] | None:
    """Two names of one and the same tensor, or None: what can be asked while a graph is traced, without addresses."""
    names = list(tensors)
    for index, name in enumerate(names):
        for other in names[:index]:
            if tensors[other] is tensors[name]:
                return other, name
    return None


def find_shared(tensors: dict[str, Tensor]) -> tuple[str, str] | None:
    """Two names whose tensors overlap in memory, or None."""
    names = list(tensors)
    for index, name in enumerate(names):
        for other in names[:index]:
            if do_overlap(tensors[other], tensors[name]):
                return other, name
    return None


def overlap_any(targets: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether a target overlaps another one, or one of the others."""
    seen = list(others)
    for target in targets:
        if any(do_overlap(target, other) for other in seen):
            return True
        seen.append(target)
    return False


def do_overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the addresses from the first element to the last of two tensors have some in common, or they are one."""
    if one is other:
        return True
    start, end = _extent(one)
    other_start, other_end = _extent(other)
    return start < other_end and other_start < end


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the first behind its last element; nothing for what owns no memory."""
    if not owns_memory(tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # a wrapper of a transform
        return 0, 0
    return start, start + (last + 1) * tensor.element_size() if start else 0
