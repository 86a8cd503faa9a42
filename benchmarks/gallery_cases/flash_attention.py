"""What flash_attention is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.flash_attention import flash_attention  # examples/ is on the path
from torch import Tensor

# batch, heads, kv_heads, length, features
SIZES = {
    "GPT-2 medium, 1024 tokens": (1, 16, 16, 1024, 64),
    "Llama 3 8B, 512 tokens": (1, 32, 8, 512, 128),
}


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """The op."""
    return flash_attention(q, k, v, causal=causal)


def reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """The formula in PyTorch operations, with the table of scores."""
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).mT * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v.repeat_interleave(groups, 1)


def built_in(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """PyTorch's own: queries and keys are as many, so that both alignments agree."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def arguments(device: str, size: tuple[int, int, int, int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """One layer's queries, keys and values."""
    batch, heads, kv_heads, length, features = size
    shapes = ((batch, number, length, features) for number in (heads, kv_heads, kv_heads))
    return tuple(torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes)


def cases() -> Iterator[Case]:
    """Layers of two models; float32 with and without a causal mask, bfloat16 with one."""
    for name, size in SIZES.items():
        for dtype, causal in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, True)):
            title = f"{name}, {str(dtype).removeprefix('torch.')}{', causal' if causal else ''}"
            # In bfloat16 PyTorch multiplies with the processor's own instructions for it, and this op in float32.
            near = 1.2
            yield Case(
                title,
                partial(attention, causal=causal),
                partial(reference, causal=causal),
                partial(arguments, size=size, dtype=dtype),
                {"built-in": partial(built_in, causal=causal)},
                {
                    (peer, mode): ratio
                    for mode in ("forward", "backward")
                    for peer, ratio in (("eager", 1 / 1.5), ("compiled", 1.0), ("built-in", near))
                },
            )
