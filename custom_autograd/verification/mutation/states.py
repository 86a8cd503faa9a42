"""The mistakes that remember or write: each call of an operator here makes a function with a memory of its own.

Under a transform, a trace or a tensor subclass they do what the right function does: a buffer that outlives a
transform raises an error there, which any test would notice.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from custom_autograd.torch_private.transforms import is_transforming
from custom_autograd.verification.mutation.changed_results import map_results
from custom_autograd.verification.mutation.changes import first_tensor, map_arguments
from custom_autograd.verification.mutation.points import Function, MutationPoint


def is_plain(tensor: Tensor) -> bool:
    """Return True if a tensor is an ordinary one, outside every transform."""
    return type(tensor) is Tensor and not is_transforming()


def written_incoming(point: MutationPoint, function: Function, part: str) -> Function:
    """Return a function with right results that doubles the incoming gradients afterwards."""
    del part

    def write(tensor: Tensor) -> Tensor:
        if is_plain(tensor) and not tensor.requires_grad:
            tensor.mul_(2)
        return tensor

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
        copies, named = map_arguments(args, kwargs, point.is_incoming, torch.clone)
        result = map_results(function(*copies, **named), point.results, lambda name, tensor: tensor)
        map_arguments(args, kwargs, point.is_incoming, write)
        return result

    return run


def written_input(point: MutationPoint, function: Function, part: str) -> Function:
    """Return a function with right results that adds one to the first tensor afterwards."""
    del part

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's kernel
        result = function(*args, **kwargs)
        first = first_tensor(args, kwargs, lambda key: True)
        if first is not None and is_plain(first) and first.dtype != torch.bool:
            with torch.no_grad():
                first.add_(1)
        return result

    del point
    return run


def cached(point: MutationPoint, function: Function, part: str) -> Function:
    """Return a function with right results in memory that the next call overwrites."""
    del part
    buffers: dict[object, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        if not is_plain(tensor) or (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor
        key = (name, tensor.shape, tensor.dtype, tensor.device)
        buffer = buffers.setdefault(key, torch.empty_like(tensor))
        return buffer.detach().copy_(tensor.detach())

    return lambda *args, **kwargs: map_results(function(*args, **kwargs), point.results, keep)


def stale_incoming(point: MutationPoint, function: Function, part: str) -> Function:
    """Return the incoming gradients of the first call, for all calls of the same sizes."""
    del part
    return _stale(function, point.is_incoming)


def stale_saved(point: MutationPoint, function: Function, part: str) -> Function:
    """Return the saved tensors of the first call, for all calls of the same sizes."""
    del part
    return _stale(function, point.is_saved)


def _stale(function: Function, is_meant: Any) -> Function:  # Any: a method of the point, as map_arguments takes it
    first: dict[object, list[Tensor]] = {}

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
        now: list[Tensor] = []
        map_arguments(args, kwargs, is_meant, lambda tensor: _noted(now, tensor))
        if not all(is_plain(tensor) for tensor in now):
            return function(*args, **kwargs)
        key = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in now)
        if key not in first:
            first[key] = [tensor.detach().clone() for tensor in now]
            return function(*args, **kwargs)
        kept = iter(first[key])
        args, kwargs = map_arguments(args, kwargs, is_meant, lambda _: next(kept))
        return function(*args, **kwargs)

    return run


def _noted(tensors: list[Tensor], tensor: Tensor) -> Tensor:
    tensors.append(tensor)
    return tensor


def counted(point: MutationPoint, function: Function, part: str) -> Function:
    """Return a function with a result that is right at first, and grows by a thousandth a call, a hundred times."""
    del part
    calls = itertools.count()

    def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's kernel
        factor = 1 + 1e-3 * (next(calls) % 100)

        def change(name: str, tensor: Tensor) -> Tensor:
            del name
            return tensor * factor if tensor.is_floating_point() or tensor.is_complex() else tensor

        return map_results(function(*args, **kwargs), point.results, change)

    return run
