"""Small questions about tensors that rules must not have to ask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.metadata import Metadata, metadata_of


def plain(value: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Resolves lazy conjugation and negation, so that user code sees the memory it reads."""
    if isinstance(value, Tensor):
        if value.is_conj() or value.is_neg():
            return value.resolve_conj().resolve_neg()
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
        return [plain(item) for item in value]
    return value


def known(value: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Metadata of a tensor, a list of it for a list, None for what is no tensor."""
    if isinstance(value, Tensor):
        return metadata_of(value)
    if isinstance(value, (list, tuple)):
        return [known(item) for item in value]
    return None


def zeros_of(metadata: Metadata, like: Tensor | None) -> Tensor:
    """Zeros that stand for an undefined gradient: of the kind of another gradient, where there is one.

    Args:
        metadata: of the result whose gradient is undefined.
        like: a defined gradient of the same node, for its tensor class; None where all are undefined.
    """
    if like is None:
        return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)
    return like.new_zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def materialize(gradient: Any, metadata: Any, like: Tensor | None) -> Any:  # Any: as in `known`
    """Zeros in place of undefined gradients, where the result is a tensor that can have one."""
    if isinstance(metadata, list):
        gradients = [None] * len(metadata) if gradient is None else gradient
        return [materialize(one, one_known, like) for one, one_known in zip(gradients, metadata, strict=True)]
    if gradient is not None or metadata is None:
        return gradient
    return zeros_of(metadata, like)


def first_tensor(values: Any) -> Tensor | None:  # Any: gradients, with lists among them
    """The first tensor there is, looking into lists."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, (list, tuple)):
            found = first_tensor(value)
            if found is not None:
                return found
    return None


def is_wanted(need: Any) -> bool:  # Any: a bool or a list of bools
    """Whether a gradient is wanted, of any element of a list."""
    return any(need) if isinstance(need, (list, tuple)) else bool(need)
