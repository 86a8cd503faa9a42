"""Whether a kernel of a variant may write its result straight into the caller's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from custom_autograd.runtime.tensors import first_tensor, tensors_in
from custom_autograd.variants.copying import has_several_elements_in_one_place
from custom_autograd.variants.expected import Metadata


def fits(targets: Sequence[Tensor], results: Metadata | None, others: Sequence[Any]) -> bool:  # Any: other arguments
    """Whether tensors have the shape, dtype and device of the results, and no place in memory twice.

    Args:
        targets: what a kernel would write to.
        results: shape and dtype of what it would write; None where nobody knows.
        others: what it would read.
    """
    if results is None:
        return False
    like = first_tensor(others)
    for target, (shape, dtype) in zip(targets, results, strict=True):
        if target.shape != shape or target.dtype != dtype or has_several_elements_in_one_place(target):
            return False
        if like is not None and target.device != like.device:
            return False
    return not _overlap(targets, tensors_in(others))


def _overlap(targets: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether a target shares memory with another one, or with what is read."""
    seen = [_extent(other) for other in others]
    for target in targets:
        start, end = _extent(target)
        if any(start < other_end and other_start < end for other_start, other_end in seen):
            return True
        seen.append((start, end))
    return False


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the first behind its last element."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()
