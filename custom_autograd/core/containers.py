"""What is in a container of any kind, and how a message reaches and shows it; and the same with other tensors."""

import dataclasses
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from custom_autograd.torch_private.trees import find_node_type


def children_of(value: object) -> list[tuple[str, object]]:
    """Yield each thing in a container with its path, `[0]`, `['k']` or `.weight`; nothing if it is not a container."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", item) for name, item in zip(getattr(value, "_fields", ()), value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    node = find_node_type(type(value))
    return [] if node is None else [(f"[{index}]", item) for index, item in enumerate(node.dump(value)[0])]


def map_tensors(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """Return the same container with `function` applied to every tensor in it, in order."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, function) for item in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return cast(Callable[..., object], type(value))(*items)
        return items if isinstance(value, list) else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_tensors(getattr(value, name), function) for name in fields})
    node = find_node_type(type(value))
    if node is None:
        return value
    items, context = node.dump(value)
    return node.load([map_tensors(item, function) for item in items], context)


def format_value(value: object) -> str:
    """Return a value in at most 80 characters: a tensor as dtype[shape], a container by its elements, else its repr."""
    if isinstance(value, Tensor):
        layout = "" if value.layout == torch.strided else f", {str(value.layout).removeprefix('torch.')}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"
    text = _format_container(value) if _has_tensors(value) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _format_container(value: object) -> str:
    """Return a container with tensors in it, as Python would write it, with shapes instead of data."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        text = ", ".join(format_value(item) for item in value)
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    fields = ", ".join(f"{path[1:]}={format_value(item)}" for path, item in children_of(value))
    return f"{type(value).__name__}({fields})"


def _has_tensors(value: object) -> bool:
    return isinstance(value, Tensor) or any(_has_tensors(item) for _, item in children_of(value))
