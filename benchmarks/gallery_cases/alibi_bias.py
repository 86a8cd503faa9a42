"""What alibi_bias is measured on."""

from collections.abc import Iterator

import torch
from cases import Case
from gallery.alibi_bias import alibi_bias  # examples/ is on the path
from torch import Tensor

BLOOM = {"heads": 32, "length": 1024}


def op(dtype: torch.dtype, device: str) -> Tensor:
    """The op with its keywords."""
    return alibi_bias(**BLOOM, dtype=dtype, device=torch.device(device))


def reference(dtype: torch.dtype, device: str) -> Tensor:
    """As people build it, with the triangle of a causal mask."""
    heads, length = BLOOM["heads"], BLOOM["length"]
    slopes = 2 ** (-8 * torch.arange(1, heads + 1, device=device) / heads)
    place = torch.arange(length, device=device)
    bias = slopes.view(-1, 1, 1) * (place - place.unsqueeze(1))
    mask = torch.full((length, length), -torch.inf, device=device).triu(1)
    return (bias + mask).to(dtype)


def cases() -> Iterator[Case]:
    """The bias of BLOOM 7B1, 1024 tokens."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"BLOOM 7B1, 1024 tokens, {str(dtype).removeprefix('torch.')}",
            op,
            reference,
            lambda device, dtype=dtype: (dtype, device),
            target={("eager", "forward"): 1 / 1.5},
        )
