"""Shape, stride, dtype, device and layout of a tensor, kept without its data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a tensor once its data are gone.

    Attributes:
        shape: its sizes.
        dtype: its element type.
        device: where it lived.
        layout: `torch.strided` or one of the sparse layouts.
        strides: in elements; empty where the layout has none.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    strides: tuple[int, ...] = ()

    def stride(self) -> tuple[int, ...]:
        """The strides, in elements, spelt as on a tensor."""
        return self.strides


def metadata_of(tensor: Tensor) -> Metadata:
    """Everything that is known of a tensor but its data."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return Metadata(tensor.shape, tensor.dtype, tensor.device, tensor.layout, strides)
