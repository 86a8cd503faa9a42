"""Whether the tensors that a variant writes to have overlapping elements, or share memory with others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_autograd.values.overlap import do_overlap


def has_internal_overlap(tensor: Tensor) -> bool:
    """Return True if a tensor is expanded, so that one write would change several of its elements."""
    if tensor.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def find_same(tensors: dict[str, Tensor]) -> tuple[str, str] | None:
    """Return two names of the same tensor, or None: all that can be compared in a traced graph, without addresses."""
    names = list(tensors)
    for index, name in enumerate(names):
        for other in names[:index]:
            if tensors[other] is tensors[name]:
                return other, name
    return None


def find_shared(tensors: dict[str, Tensor]) -> tuple[str, str] | None:
    """Return two names whose tensors overlap in memory, or None."""
    names = list(tensors)
    for index, name in enumerate(names):
        for other in names[:index]:
            if do_overlap(tensors[other], tensors[name]):
                return other, name
    return None


def overlap_any(targets: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True if a target overlaps another one, or one of the others."""
    seen = list(others)
    for target in targets:
        if any(do_overlap(target, other) for other in seen):
            return True
        seen.append(target)
    return False
