"""What fused_linear_cross_entropy is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.fused_linear_cross_entropy import linear_cross_entropy  # examples/ is on the path
from torch import Tensor

PYTHIA = {"tokens": 2048, "features": 128, "classes": 50304}


def reference(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """What people write, which is the built-in too; the mean in float32, since in bfloat16 PyTorch's is 1.4 % off."""
    return F.cross_entropy(F.linear(x, weight), labels, reduction="none").float().mean()


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The last layer's output, the unembedding, and the next tokens."""
    x = torch.randn(PYTHIA["tokens"], PYTHIA["features"], device=device).to(dtype)
    weight = (0.02 * torch.randn(PYTHIA["classes"], PYTHIA["features"], device=device)).to(dtype)
    labels = torch.randint(PYTHIA["classes"], (PYTHIA["tokens"],), device=device)
    return x.requires_grad_(), weight.requires_grad_(), labels


def cases() -> Iterator[Case]:
    """The loss of Pythia 14M. Its forward computes the gradients too: its target is memory, not the time of forward."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"Pythia 14M, 2048 tokens, {str(dtype).removeprefix('torch.')}",
            linear_cross_entropy,
            reference,
            partial(arguments, dtype=dtype),
            target={("eager", "memory"): 0.3},
        )
