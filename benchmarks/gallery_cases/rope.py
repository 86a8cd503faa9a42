"""What rope is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.rope import rope  # examples/ is on the path
from torch import Tensor

LLAMA = {"heads": 32, "positions": 2048, "features": 128}


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula in PyTorch operations, as models write it."""
    low, high = x.chunk(2, -1)
    turned = torch.cat((-high, low), -1)
    return x * torch.cat((cos, cos), -1) + turned * torch.cat((sin, sin), -1)


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The queries of one layer, and constant tables."""
    half = LLAMA["features"] // 2
    angle = torch.arange(LLAMA["positions"]).unsqueeze(1) * 1e4 ** (-torch.arange(half) / half)
    x = torch.randn(1, LLAMA["heads"], LLAMA["positions"], LLAMA["features"], dtype=dtype, device=device)
    return x.requires_grad_(), angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def cases() -> Iterator[Case]:
    """The queries of a layer of Llama 7B, in the dtypes of training; the backward is the same kernel."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"Llama 7B, 2048 positions, {str(dtype).removeprefix('torch.')}",
            rope,
            reference,
            partial(arguments, dtype=dtype),
            target={
                ("eager", "forward"): 1 / 1.5,
                ("compiled", "forward"): 1.0,
                ("eager", "backward"): 1 / 1.5,
                ("compiled", "backward"): 1.0,
            },
        )
