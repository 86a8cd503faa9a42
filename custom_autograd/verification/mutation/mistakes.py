"""The mistakes that need no memory: one tensor in, a wrong one of the same shape and dtype out.

They change what a function takes, or what it returns: tensors alone, in a tuple, a list or a dict, or as a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import map_tensors

Change: TypeAlias = Callable[[Tensor], Tensor]
"""A tensor in, one of the same shape and dtype out."""

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a user's function (Any: of any type)."""


def map_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], is_meant: Callable[[int | str], bool], change: Change
) -> Arguments:
    """Return the same arguments with the tensors among those that are meant changed, in containers too."""

    def changed(key: int | str, value: Any) -> Any:  # Any: a user's argument
        return map_tensors(value, change) if is_meant(key) else value

    return tuple(changed(*row) for row in enumerate(args)), {name: changed(name, kwargs[name]) for name in kwargs}


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any], is_meant: Callable[[int | str], bool]) -> Tensor | None:
    """Return the first tensor among the arguments that are meant; None if there is none."""
    meant = [value for position, value in enumerate(args) if is_meant(position)]
    meant += [value for name, value in kwargs.items() if is_meant(name)]
    return next((value for value in meant if isinstance(value, Tensor)), None)


def doubled(tensor: Tensor) -> Tensor:
    """Return twice the tensor; flags stay as they are."""
    return tensor if tensor.dtype == torch.bool else 2 * tensor


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


Result: TypeAlias = Any
"""A tensor, None, a callable that returns one, or a container of those (Any: a user's function returned it)."""


def map_results(result: Result, names: Sequence[str], change: Callable[[str, Tensor], Tensor]) -> Result:
    """Return the same result with `change` applied to every tensor, given its name; a callable stays one.

    Args:
        result: what was returned.
        names: what its parts are called, in order; a dict has names of its own.
        change: (name, tensor) -> tensor.
    """
    if isinstance(result, dict):
        return {name: _map(value, str(name), change) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        changed = [_map(value, _name(names, position), change) for position, value in enumerate(result)]
        if hasattr(result, "_fields"):
            return type(result)(*changed)
        return changed if isinstance(result, list) else tuple(changed)
    return _map(result, _name(names, 0), change)


def _map(value: Result, name: str, change: Callable[[str, Tensor], Tensor]) -> Result:
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, (list, tuple)):
        changed = [_map(item, name, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    if callable(value):
        return lambda: _map(value(), name, change)
    return value


def _name(names: Sequence[str], position: int) -> str:
    return names[position] if position < len(names) else str(position)


def swap_results(result: Result) -> Result:
    """Return the same result with the first two tensors of one shape and dtype exchanged.

    As it is where there are none.
    """
    if isinstance(result, dict):
        swapped = _swapped(list(result.values()))
        return dict(zip(result, swapped, strict=True))
    if isinstance(result, (list, tuple)):
        swapped = _swapped(list(result))
        return swapped if isinstance(result, list) else tuple(swapped)
    return result


def _swapped(values: list[Result]) -> list[Result]:
    tensors = [tensor_of(value) for value in values]
    for first, one in enumerate(tensors):
        for second in range(first + 1, len(tensors)):
            other = tensors[second]
            if one is not None and other is not None and (one.shape, one.dtype) == (other.shape, other.dtype):
                values[first], values[second] = values[second], values[first]
                return values
    return values


def tensor_of(value: Result) -> Tensor | None:
    """Return the tensor itself, or the one that a callable returns; None for anything else.

    A callable is a gradient that may not be wanted, and then may not find what it needs: that is None too.
    """
    if callable(value) and not isinstance(value, Tensor):
        try:
            value = value()
        except Exception:  # noqa: BLE001 - an unwanted gradient may raise anything
            return None
    return value if isinstance(value, Tensor) else None


def tensors_of(result: Result) -> Iterator[Tensor]:
    """Yield every tensor of a result, callables called."""
    if isinstance(result, dict):
        result = list(result.values())
    for value in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(value, (list, tuple)):
            yield from tensors_of(value)
            continue
        tensor = tensor_of(value)
        if tensor is not None:
            yield tensor
