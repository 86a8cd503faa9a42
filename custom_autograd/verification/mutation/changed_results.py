"""What a rule or a kernel returns, tensor by tensor: alone, in a tuple, a list or a dict, or as a callable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from torch import Tensor

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
