"""The mistakes that need no memory: one tensor in, a wrong one of the same shape and dtype out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Change: TypeAlias = Callable[[Tensor], Tensor]
"""A tensor in, one of the same shape and dtype out."""

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a user's function (Any: of any type)."""


def map_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], is_meant: Callable[[int | str], bool], change: Change
) -> Arguments:
    """Return the same arguments with the tensors among those that are meant changed, in lists too."""
    changed = tuple(_map(value, change) if is_meant(position) else value for position, value in enumerate(args))
    return changed, {name: _map(value, change) if is_meant(name) else value for name, value in kwargs.items()}


def _map(value: Any, change: Change) -> Any:  # Any: a user's argument
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        changed = [_map(item, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    return value


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any], is_meant: Callable[[int | str], bool]) -> Tensor | None:
    """Return the first tensor among the arguments that are meant; None if there is none."""
    meant = [value for position, value in enumerate(args) if is_meant(position)]
    meant += [value for name, value in kwargs.items() if is_meant(name)]
    return next((value for value in meant if isinstance(value, Tensor)), None)


def negated(tensor: Tensor) -> Tensor:
    """Return the negative."""
    return -tensor


def doubled(tensor: Tensor) -> Tensor:
    """Return twice the tensor; flags stay as they are."""
    return tensor if tensor.dtype == torch.bool else 2 * tensor


def zero(tensor: Tensor) -> Tensor:
    """Return zeros."""
    return torch.zeros_like(tensor)


def detached(tensor: Tensor) -> Tensor:
    """Return the same numbers without a derivative."""
    return tensor.detach()


def magnitude(tensor: Tensor) -> Tensor:
    """Return the absolute values; of a complex number, those of its parts."""
    if tensor.is_complex():
        return torch.complex(tensor.real.abs(), tensor.imag.abs())
    return tensor.abs()


def averaged(tensor: Tensor, incoming: Tensor | None) -> Tensor:
    """Return the tensor over the number of elements that were summed for each of its own, else over its first size."""
    size = max(tensor.numel(), 1)
    count = 1 if incoming is None else incoming.numel() // size
    if count <= 1 and tensor.dim():
        count = tensor.shape[0]
    return tensor / count if count > 1 else tensor


def rounded(tensor: Tensor) -> Tensor:
    """Return the tensor, rounded to bfloat16."""
    if tensor.is_complex():
        return torch.complex(rounded(tensor.real), rounded(tensor.imag))
    return tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.is_floating_point() else tensor


def transposed(tensor: Tensor) -> Tensor:
    """Return the elements of each matrix in the order of its transpose; anything below a matrix stays as it is."""
    return tensor if tensor.dim() < 2 else tensor.mT.reshape(tensor.shape)


def cut(tensor: Tensor) -> Tensor:
    """Return the tensor with zero as its last element; flags and empty tensors stay as they are."""
    if tensor.dtype == torch.bool or tensor.numel() == 0:
        return tensor
    position = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
    return torch.where(position < tensor.numel() - 1, tensor, torch.zeros_like(tensor))


def noisy(tensor: Tensor) -> Tensor:
    """Return the tensor with a relative error of at most one in a thousand, the same at every call."""
    position = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
    return (tensor * (1 + 1e-3 * torch.cos(position.to(torch.float64)))).to(tensor.dtype)


def misread(tensor: Tensor) -> Tensor:
    """Return what a kernel reads that ignores strides; the tensor itself, if it is contiguous."""
    if tensor.layout != torch.strided or tensor.is_contiguous() or tensor.numel() == 0:
        return tensor
    offset = int(tensor.storage_offset())
    available = max(tensor.untyped_storage().nbytes() // tensor.element_size() - offset, 1)
    memory = tensor.as_strided((available,), (1,), offset)
    positions = torch.arange(tensor.numel(), device=tensor.device) % available
    return memory[positions].view(tensor.shape)
