"""Cases of grouped_mm at sizes made for GPUs."""

from collections.abc import Iterator
from functools import partial

import torch
from gallery.grouped_mm import grouped_mm
from gpu_case import GpuCase
from torch import Tensor

# rows, depth, columns, experts
SIZES = {
    "Mixtral 8x7B, 16k rows": (16384, 4096, 14336, 8),
    "OLMoE 1B-7B, 32k rows": (32768, 2048, 1024, 64),
    "DeepSeek V3, 32k rows, 32 experts of a rank": (32768, 7168, 2048, 32),
}


def reference(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """A loop over the experts."""
    ends = [0, *offsets.tolist()]
    return torch.cat([a[start:end] @ matrix for start, end, matrix in zip(ends, ends[1:], b, strict=False)])


def built_in(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """PyTorch's own, for bfloat16."""
    return torch._grouped_mm(a, b, offs=offsets.to(torch.int32))


def arguments(device: str, size: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows sorted by expert, a matrix for each expert, and where each expert's rows end."""
    rows, depth, columns, experts = size
    a = torch.randn(rows, depth, device=device, dtype=dtype)
    b = torch.randn(experts, depth, columns, device=device, dtype=dtype) * depth**-0.5
    chosen = torch.randint(experts, (rows,), device=device)
    return a.requires_grad_(), b.requires_grad_(), torch.bincount(chosen, minlength=experts).cumsum(0)


def cases(is_tiny: bool) -> Iterator[GpuCase]:
    """One projection of the experts of three models."""
    for name, size in SIZES.items():
        size = (32, 16, 24, 4) if is_tiny else size
        yield GpuCase(
            f"grouped_mm, {name}, bfloat16", grouped_mm, reference,
            partial(arguments, size=size, dtype=torch.bfloat16), {"built-in": built_in},
            family="grouped products", flops=2.0 * size[0] * size[1] * size[2],
        )  # fmt: skip
