"""What grouped_mm is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.grouped_mm import grouped_mm  # examples/ is on the path
from torch import Tensor

OLMOE = {"tokens": 512, "features": 2048, "hidden": 1024, "experts": 64}


def reference(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """A loop over the experts."""
    ends = [0, *offsets.tolist()]
    return torch.cat([a[start:end] @ matrix for start, end, matrix in zip(ends, ends[1:], b, strict=False)])


def built_in(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """PyTorch's own, which knows bfloat16."""
    return F.grouped_mm(a, b, offs=offsets.to(torch.int32))


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens sorted by expert, one matrix per expert, and where each expert's tokens end."""
    a = torch.randn(OLMOE["tokens"], OLMOE["features"], device=device).to(dtype)
    b = torch.randn(OLMOE["experts"], OLMOE["features"], OLMOE["hidden"], device=device).to(dtype)
    experts = torch.randint(OLMOE["experts"], (OLMOE["tokens"],), device=device)
    offsets = torch.bincount(experts, minlength=OLMOE["experts"]).cumsum(0)
    return a.requires_grad_(), b.requires_grad_(), offsets


def cases() -> Iterator[Case]:
    """One projection of the experts of OLMoE 1B-7B, 64 tokens sent to 8 of 64 experts."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"OLMoE 1B-7B, 64 tokens to 8 experts each, {str(dtype).removeprefix('torch.')}",
            grouped_mm,
            reference,
            partial(arguments, dtype=dtype),
            {"built-in": built_in} if dtype == torch.bfloat16 else {},
            {("eager", "forward"): 0.6},
        )
