"""What dropout with a seed is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.dropout import dropout  # examples/ is on the path
from torch import Tensor

PROBABILITY = 0.1


def op(x: Tensor, seed: Tensor) -> Tensor:
    """The mask is drawn again in the backward."""
    return dropout(x, PROBABILITY, seed)


def reference(x: Tensor, seed: Tensor) -> Tensor:
    """The formula in PyTorch operations, with PyTorch's own generator: Philox in them is not a peer."""
    kept = torch.rand_like(x, dtype=torch.float32) >= PROBABILITY
    return torch.where(kept, x / (1 - PROBABILITY), 0)


def built_in(x: Tensor, seed: Tensor) -> Tensor:
    """PyTorch's own, which saves the mask."""
    return F.dropout(x, PROBABILITY)


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The output of a layer, and a seed."""
    x = torch.randn(2048, 4096, dtype=dtype, device=device)
    return x.requires_grad_(), torch.randint(2**62, (), device=device)


def cases() -> Iterator[Case]:
    """What a layer of GPT-3 6.7B drops of 2048 tokens."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"GPT-3 6.7B, 2048 tokens, {str(dtype).removeprefix('torch.')}",
            op,
            reference,
            partial(arguments, dtype=dtype),
            {"built-in": built_in},
            {("eager", "forward"): 1 / 1.5, ("built-in", "forward"): 1 / 1.5, ("compiled", "forward"): 1.0},
        )
