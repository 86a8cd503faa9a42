"""What fused_add_rms_norm is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.fused_add_rms_norm import fused_add_rms_norm  # examples/ is on the path
from torch import Tensor

LLAMA = {"tokens": 2048, "features": 4096}


def op(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both go on into the model, so both have a gradient. All that are measured write to one residual, outside graphs.

    .data: no call is part of the graph of the next.
    """
    residual = residual.data
    return fused_add_rms_norm(x, residual, weight), residual


def reference(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The formula in PyTorch operations; the residual is written in place, as in the op."""
    residual = residual.data.add_(x)
    wide = residual.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype), residual


def built_in(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own addition and normalisation, one after the other."""
    residual = residual.data.add_(x)
    return F.rms_norm(residual, weight.shape, weight, 1e-6), residual


@torch.compile
def out_of_place(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The formula without a write, compiled: torch.compile loses the gradient of a residual that is written to."""
    residual = residual.data + x
    wide = residual.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype), residual


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """One layer's output, the residual stream, and a weight. Every call adds to the residual: x is small."""
    shape = LLAMA["tokens"], LLAMA["features"]
    x, residual = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    weight = torch.ones(shape[-1:], dtype=dtype, device=device)
    return x.mul_(1e-6).requires_grad_(), residual, weight.requires_grad_()


def cases() -> Iterator[Case]:
    """A layer of Llama 7B, in the dtypes of training."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"Llama 7B, 2048 tokens, {str(dtype).removeprefix('torch.')}",
            op,
            reference,
            partial(arguments, dtype=dtype),
            {"built-in": built_in, "compiled, out of place": out_of_place},
            {
                ("eager", "forward"): 1 / 1.5,
                ("compiled, out of place", "forward"): 1.0,
                ("eager", "backward"): 1 / 1.5,
                ("compiled, out of place", "backward"): 1.0,
            },
        )
