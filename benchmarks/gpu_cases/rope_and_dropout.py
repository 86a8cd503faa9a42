"""Cases of rope and dropout at sizes made for GPUs."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from gallery.dropout import dropout
from gallery.rope import rope
from gpu_case import GpuCase
from layers import LLAMA_8B, LLAMA_70B, Layer, sized, title
from torch import Tensor

PROBABILITY = 0.1
SIZES = (
    (LLAMA_8B, 16384, torch.bfloat16),
    (LLAMA_70B, 16384, torch.bfloat16),
    (LLAMA_8B, 16384, torch.float32),
    (LLAMA_8B, 131072, torch.bfloat16),
)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula in PyTorch operations, rounded once."""
    low, high = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


def rope_arguments(device: str, dtype: torch.dtype, layer: Layer, tokens: int) -> tuple[Tensor, ...]:
    """The queries of a layer, and constant tables."""
    half = layer.features // 2
    angle = torch.arange(tokens).unsqueeze(1) * 5e5 ** (-torch.arange(half) / half)
    x = torch.randn(1, layer.heads, tokens, layer.features, dtype=dtype, device=device)
    return x.requires_grad_(), angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def dropped(x: Tensor, seed: Tensor) -> Tensor:
    """The op, which draws its mask again in the backward."""
    return dropout(x, PROBABILITY, seed)


def dropped_reference(x: Tensor, seed: Tensor) -> Tensor:
    """The formula with PyTorch's own generator: Philox in operations is not a peer."""
    kept = torch.rand_like(x, dtype=torch.float32) >= PROBABILITY
    return torch.where(kept, x / (1 - PROBABILITY), 0)


def dropped_built_in(x: Tensor, seed: Tensor) -> Tensor:
    """PyTorch's own, which saves the mask."""
    return F.dropout(x, PROBABILITY)


def dropout_arguments(device: str, dtype: torch.dtype, layer: Layer, tokens: int) -> tuple[Tensor, Tensor]:
    """The output of a layer, and a seed."""
    x = torch.randn(tokens, layer.hidden, dtype=dtype, device=device)
    return x.requires_grad_(), torch.randint(2**62, (), device=device)


def cases(is_tiny: bool) -> Iterator[GpuCase]:
    """Both on the layers above; their backward passes are the same kernels."""
    for layer, tokens, dtype in SIZES:
        layer, tokens = sized(layer, tokens, is_tiny)
        name, sizes = title(layer, tokens, dtype), {"dtype": dtype, "layer": layer, "tokens": tokens}
        moved = 2 * tokens * layer.heads * layer.features * dtype.itemsize
        yield GpuCase(
            f"rope, {name}", rope, rotated, partial(rope_arguments, **sizes),
            family="rope", bytes_moved=moved, backward_bytes=moved,
        )  # fmt: skip
        moved = 2 * tokens * layer.hidden * dtype.itemsize
        yield GpuCase(
            f"dropout, {name}", dropped, dropped_reference, partial(dropout_arguments, **sizes),
            {"built-in": dropped_built_in}, family="dropout", bytes_moved=moved, backward_bytes=moved, is_drawn=True,
        )  # fmt: skip
