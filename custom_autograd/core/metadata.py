"""Shape, stride, dtype, device, layout and kind of a tensor, kept without its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from custom_autograd.frozen_dataclass import dataclass

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""The classes of tensors that hold their own data; any other may be a wrapper."""

LOW_PRECISION = frozenset({torch.bfloat16, torch.float16})
"""The dtypes to which autocast casts."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Facts about a tensor that remain without its data.

    Attributes:
        shape: its sizes.
        dtype: its element type.
        device: where it lived.
        layout: `torch.strided` or one of the sparse layouts.
        grad_dtype: element type of its gradient, as `Tensor.grad_dtype`; None if any is accepted.
        strides: in elements; empty where the layout has none.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    grad_dtype: torch.dtype | None
    strides: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        """Return the number of dimensions, spelt as on a tensor; so are the methods."""
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)  # `Size.numel` makes a number of a symbolic size

    def stride(self) -> tuple[int, ...]:
        """Return the strides, in elements."""
        return self.strides


@dataclass(frozen=True, slots=True)
class WrapperMetadata(Metadata):
    """Facts about a wrapper subclass, with how it is put together, as its own `__tensor_flatten__` says.

    Attributes:
        cls: the subclass.
        parts: by attribute, metadata of what holds the elements; anything else (offsets, a device mesh) itself.
        context: what its `__tensor_unflatten__` takes besides them (Any: each class has its own).
    """

    cls: Any = None  # Any: a subclass with `__tensor_unflatten__`, which Tensor itself has not
    parts: Mapping[str, object] = field(default_factory=dict)
    context: Any = None


def metadata_of(tensor: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Return everything that is known of a tensor but its data, a list of it for a list, None for anything else."""
    if not isinstance(tensor, Tensor):
        return [metadata_of(item) for item in tensor] if isinstance(tensor, (list, tuple)) else None
    layout = tensor.layout  # a fake tensor computes it
    strides = tensor.stride() if layout is torch.strided else ()
    if type(tensor) is Tensor and not tensor.requires_grad:
        return Metadata(tensor.shape, tensor.dtype, tensor.device, layout, tensor.dtype, strides)
    if type(tensor) in PLAIN or not (is_wrapper(tensor) and _holds_numbers(tensor)):
        return Metadata(tensor.shape, tensor.dtype, tensor.device, layout, grad_dtype_of(tensor), strides)
    parts, context = _take_apart(tensor)
    facts = tensor.shape, tensor.dtype, tensor.device, layout, tensor.dtype, strides
    return WrapperMetadata(*facts, type(tensor), parts, context)


def grad_dtype_of(tensor: Tensor) -> torch.dtype | None:
    """Return the element type of the gradient of a tensor, and None if any is accepted.

    Only a leaf can have another one than its own (`Tensor.grad_dtype`, from torch 2.13 on).
    """
    if torch.compiler.is_dynamo_compiling() or type(tensor) not in PLAIN:  # Dynamo cannot trace it
        return tensor.dtype
    if not tensor.requires_grad or not tensor.is_leaf:
        return tensor.dtype
    found: torch.dtype | None = getattr(tensor, "grad_dtype", tensor.dtype)
    return found


def is_same_shape(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if two shapes are equal; in a graph, sizes that depend on data are asserted to be when it runs."""
    if len(one) != len(other):
        return False
    try:
        return one == other
    except Exception:  # noqa: BLE001 - the sizes that raise are compared again, which raises the same
        from custom_autograd.torch_private.symbols import are_asserted_equal  # loads sympy

        return are_asserted_equal(one, other)


def is_wrapper(tensor: Tensor) -> bool:
    """Return True if a tensor can be taken apart and put together again, as `torch.compile` does."""
    cls = type(tensor)
    return cls not in PLAIN and hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def _take_apart(tensor: Any) -> tuple[dict[str, object], Any]:
    """Return the parts and the context of a wrapper (Any: `__tensor_flatten__` is its class's own)."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    return {name: metadata_of(one) if _holds_numbers(one) else one for name, one in parts.items()}, context


def _holds_numbers(value: object) -> bool:
    """Return True if it is a tensor that can carry a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
