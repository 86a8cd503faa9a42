"""Cases of rms_norm and fused_add_rms_norm at sizes made for GPUs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gallery.fused_add_rms_norm import fused_add_rms_norm
from gallery.rms_norm import rms_norm
from gpu_case import GpuCase
from layers import LLAMA_8B, LLAMA_70B, sized, title
from torch import Tensor

SIZES = (
    (LLAMA_8B, 16384, torch.bfloat16),
    (LLAMA_70B, 16384, torch.bfloat16),
    (LLAMA_8B, 16384, torch.float32),
    (LLAMA_8B, 4096, torch.bfloat16),
    (LLAMA_8B, 131072, torch.bfloat16),
)


def normalised(x: Tensor, weight: Tensor) -> Tensor:
    """The formula in PyTorch operations."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def built_in(x: Tensor, weight: Tensor) -> Tensor:
    """PyTorch's own."""
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def liger(x: Tensor, weight: Tensor) -> Tensor:
    """Liger-Kernel's, where it is installed."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)


def added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The op. The residual is written outside of graphs, and x is small, so that calls may be repeated."""
    residual = residual.data
    return fused_add_rms_norm(x, residual, weight), residual


def added_reference(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The formula, with the same write."""
    residual = residual.data.add_(x)
    return normalised(residual, weight), residual


def added_out_of_place(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The formula without a write: torch.compile loses the gradient of a residual that is written to."""
    total = residual.data + x
    return normalised(total, weight), total


def added_built_in(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own addition and normalisation."""
    residual = residual.data.add_(x)
    return built_in(residual, weight), residual


def arguments(device: str, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A layer's input and its weight."""
    x, weight = torch.randn(shape, dtype=dtype, device=device), torch.randn(shape[-1:], dtype=dtype, device=device)
    return x.requires_grad_(), weight.requires_grad_()


def added_arguments(device: str, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """A layer's output, the residual stream and a weight."""
    x, weight = arguments(device, dtype, shape)
    return (1e-6 * x).detach().requires_grad_(), torch.randn(shape, dtype=dtype, device=device), weight


def cases(is_tiny: bool) -> Iterator[GpuCase]:
    """Both ops on the layers above."""
    for layer, tokens, dtype in SIZES:
        layer, tokens = sized(layer, tokens, is_tiny)
        shape, size = (tokens, layer.hidden), tokens * layer.hidden * dtype.itemsize
        options: dict[str, Any] = {"family": "norm", "bytes_moved": 2 * size, "backward_bytes": 3 * size}
        peers = {"built-in": built_in, "Liger-Kernel": liger}
        make = partial(arguments, dtype=dtype, shape=shape)
        yield GpuCase(f"rms_norm, {title(layer, tokens, dtype)}", rms_norm, normalised, make, peers, **options)
        if tokens <= 16384:
            options |= {"bytes_moved": 4 * size, "backward_bytes": 4 * size}
            make, peers = partial(added_arguments, dtype=dtype, shape=shape), {"built-in": added_built_in}
            name = f"fused_add_rms_norm, {title(layer, tokens, dtype)}"
            yield GpuCase(name, added, added_reference, make, peers, to_compile=added_out_of_place, **options)
