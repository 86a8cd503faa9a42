"""What fake_quantize is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.fake_quantize import fake_quantize  # examples/ is on the path
from torch import Tensor

LEVELS = -128, 127


def op(x: Tensor, scale: Tensor) -> Tensor:
    """Symmetric, per tensor."""
    return fake_quantize(x, scale, None, *LEVELS)


def reference(x: Tensor, scale: Tensor) -> Tensor:
    """LSQ as it is written in PyTorch operations; in float32, since bfloat16 has no half steps beyond 64."""
    wide = scale.float()
    clamped = (x.float() / wide).clamp(*LEVELS)
    return ((clamped + (clamped.round() - clamped).detach()) * wide).to(x.dtype)


def built_in(x: Tensor, scale: Tensor) -> Tensor:
    """PyTorch's own, which takes float32 alone."""
    return torch._fake_quantize_learnable_per_tensor_affine(x, scale, torch.zeros_like(scale), *LEVELS, 1.0)


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A weight and its step size.

    No number lies half way between two steps, where the last bit would decide, or within a step of the bounds, beyond
    which the gradient of PyTorch's own ends half a step later.
    """
    whole = (50 * torch.randn(4096, 2048, device=device)).round()
    whole = whole.where((whole.abs() - 127.5).abs() > 1, 0)
    weight = (0.02 * (whole + 0.8 * (torch.rand_like(whole) - 0.5))).to(dtype)
    return weight.requires_grad_(), torch.full((1,), 0.02, dtype=dtype, device=device).requires_grad_()


def cases() -> Iterator[Case]:
    """A weight of Llama 1B, in the dtypes of training."""
    ratios = {(peer, mode): ratio for peer, ratio in (("eager", 1 / 1.5), ("compiled", 1.0)) for mode in MODES}
    for dtype in (torch.float32, torch.bfloat16):
        peers = {"built-in": built_in} if dtype == torch.float32 else {}
        name = f"weight of 4096 x 2048, {str(dtype).removeprefix('torch.')}"
        yield Case(name, op, reference, partial(arguments, dtype=dtype), peers, ratios)


MODES = "forward", "backward"
