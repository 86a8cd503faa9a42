"""What softmax_cross_entropy is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.softmax_cross_entropy import softmax_cross_entropy  # examples/ is on the path
from torch import Tensor

LLAMA = {"tokens": 512, "classes": 32000}
SMALL = {"tokens": 128, "classes": 256}  # bytes as tokens: what a call costs besides its arithmetic


def reference(logits: Tensor, labels: Tensor) -> Tensor:
    """The formula in PyTorch operations; the sum of exponentials is kept in float32, as in the op."""
    wide = logits.float()
    return (wide.logsumexp(-1) - wide.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


def arguments(device: str, dtype: torch.dtype, tokens: int, classes: int) -> tuple[Tensor, ...]:
    """The logits of some tokens, and the tokens that follow them."""
    logits = torch.randn(tokens, classes, dtype=dtype, device=device, requires_grad=True)
    return logits, torch.randint(classes, (tokens,), device=device)


def cases() -> Iterator[Case]:
    """The vocabulary of Llama 7B, in the dtypes of training, and one of bytes."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"Llama 7B, 512 tokens, {str(dtype).removeprefix('torch.')}",
            softmax_cross_entropy,
            reference,
            partial(arguments, dtype=dtype, **LLAMA),
            {"built-in": F.cross_entropy},
            {
                ("eager", "forward"): 1 / 1.5,
                ("compiled", "forward"): 1.0,
                ("eager", "backward"): 1 / 1.5,
                ("compiled", "backward"): 1.0,
            },
        )
    yield Case(
        "bytes, 128 tokens, float32",
        softmax_cross_entropy,
        reference,
        partial(arguments, dtype=torch.float32, **SMALL),
        {"built-in": F.cross_entropy},
        {("built-in", "forward"): 1.0, ("built-in", "backward"): 1.0},
    )
