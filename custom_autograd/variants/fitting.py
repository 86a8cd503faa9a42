"""Whether a kernel of a variant may write its result straight into the caller's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from custom_autograd.values.tensors import first_tensor, tensors_in
from custom_autograd.variants.expected import Metadata
from custom_autograd.variants.shared_memory import has_internal_overlap, overlap_any


def fits(targets: Sequence[Tensor], results: Metadata | None, others: Sequence[Any]) -> bool:  # Any: other arguments
    """Return True if tensors have the shape, dtype and device of the results, and no element twice in memory.

    Args:
        targets: what a kernel would write to.
        results: shape and dtype of what it would write; None if unknown.
        others: what it would read.
    """
    if results is None:
        return False
    like = first_tensor(others)
    for target, (shape, dtype) in zip(targets, results, strict=True):
        if target.shape != shape or target.dtype != dtype or has_internal_overlap(target):
            return False
        if like is not None and target.device != like.device:
            return False
    return not overlap_any(targets, tensors_in(others))
