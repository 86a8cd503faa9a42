"""What rms_norm is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.rms_norm import rms_norm  # examples/ is on the path
from torch import Tensor

LLAMA = {"tokens": 2048, "features": 4096}
SMALL = {"tokens": 128, "features": 256}  # what a call costs besides its arithmetic


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The formula in PyTorch operations."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def built_in(x: Tensor, weight: Tensor) -> Tensor:
    """PyTorch's own."""
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def arguments(device: str, dtype: torch.dtype, tokens: int, features: int) -> tuple[Tensor, Tensor]:
    """One layer's input and its weight."""
    shapes = (tokens, features), (features,)
    x, weight = (torch.randn(shape, dtype=dtype, device=device) for shape in shapes)
    return x.requires_grad_(), weight.requires_grad_()


def cases() -> Iterator[Case]:
    """A layer of Llama 7B, in the dtypes of training, and one of a small model."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"Llama 7B, 2048 tokens, {str(dtype).removeprefix('torch.')}",
            rms_norm,
            reference,
            partial(arguments, dtype=dtype, **LLAMA),
            {"built-in": built_in},
            {
                ("eager", "forward"): 1 / 1.5,
                ("compiled", "forward"): 1.0,
                ("eager", "backward"): 1 / 1.5,
                ("compiled", "backward"): 1.0,
            },
        )
    yield Case(
        "small model, 128 tokens, float32",
        rms_norm,
        reference,
        partial(arguments, dtype=torch.float32, **SMALL),
        {"built-in": built_in},
        {("built-in", "forward"): 1.0, ("built-in", "backward"): 1.0},
    )
