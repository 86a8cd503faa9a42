"""What scale_grad is measured on: it computes nothing, so this is what a call and its backward cost."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from cases import Case
from gallery.gradient_rules import scale_grad  # examples/ is on the path
from torch import Tensor

FACTOR = 0.1


class ScaleGrad(torch.autograd.Function):
    """What people write by hand (Any: the context)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A view: what is returned as it is would be marked as an input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The declared derivative."""
        return FACTOR * grad


def reference(x: Tensor) -> Tensor:
    """The same in PyTorch operations, where nothing is infinite."""
    return FACTOR * x + (x - FACTOR * x).detach()


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor]:
    """The features of one batch, as a domain classifier sees them."""
    return (torch.randn(256, 4096, dtype=dtype, device=device).requires_grad_(),)


def cases() -> Iterator[Case]:
    """The features of a domain-adversarial network."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"256 x 4096 features, {str(dtype).removeprefix('torch.')}",
            partial(scale_grad, scale=FACTOR),
            reference,
            partial(arguments, dtype=dtype),
            {"autograd.Function": ScaleGrad.apply},
            {("eager", "forward"): 1 / 1.5, ("eager", "backward"): 1.0},
        )
