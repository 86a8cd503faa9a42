"""Cases of the cross entropies at sizes made for GPUs."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from gallery.fused_linear_cross_entropy import linear_cross_entropy
from gallery.softmax_cross_entropy import softmax_cross_entropy
from gpu_case import GpuCase
from layers import LLAMA_8B, Layer, sized, title
from torch import Tensor

SIZES = ((4096, torch.bfloat16), (8192, torch.bfloat16), (4096, torch.float32))


def reference(logits: Tensor, labels: Tensor) -> Tensor:
    """The formula; the sum of exponentials is kept in float32 or wider, as in the op."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (wide.logsumexp(-1) - wide.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


def liger(logits: Tensor, labels: Tensor) -> Tensor:
    """Liger-Kernel's, where it is installed; its forward overwrites the logits, so it has a copy."""
    from liger_kernel.transformers.functional import liger_cross_entropy

    return liger_cross_entropy(logits.clone(), labels)


def arguments(device: str, dtype: torch.dtype, layer: Layer, tokens: int) -> tuple[Tensor, Tensor]:
    """The logits of some tokens, and the tokens that follow them."""
    logits = torch.randn(tokens, layer.vocabulary, dtype=dtype, device=device, requires_grad=True)
    return logits, torch.randint(layer.vocabulary, (tokens,), device=device)


def fused_reference(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the loss as models compute it: the logits are stored."""
    losses = F.cross_entropy(F.linear(x, weight), labels, reduction="none")
    return losses.to(torch.promote_types(x.dtype, torch.float32)).mean()


def fused_arguments(device: str, dtype: torch.dtype, layer: Layer, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """The last layer's output, the unembedding, and the next tokens."""
    x = torch.randn(tokens, layer.hidden, device=device, dtype=dtype)
    weight = 0.02 * torch.randn(layer.vocabulary, layer.hidden, device=device, dtype=dtype)
    return x.requires_grad_(), weight.requires_grad_(), torch.randint(layer.vocabulary, (tokens,), device=device)


def cases(is_tiny: bool) -> Iterator[GpuCase]:
    """The vocabulary of Llama 3."""
    for count, dtype in SIZES:
        layer, tokens = sized(LLAMA_8B, count, is_tiny)
        size = tokens * layer.vocabulary * dtype.itemsize
        yield GpuCase(
            f"softmax_cross_entropy, {title(layer, tokens, dtype)}", softmax_cross_entropy, reference,
            partial(arguments, dtype=dtype, layer=layer, tokens=tokens),
            {"built-in": F.cross_entropy, "Liger-Kernel": liger},
            family="cross entropy", bytes_moved=size, backward_bytes=2 * size,
        )  # fmt: skip
    layer, tokens = sized(LLAMA_8B, 2048, is_tiny)
    yield GpuCase(
        f"fused_linear_cross_entropy, {title(layer, tokens, torch.bfloat16)}", linear_cross_entropy, fused_reference,
        partial(fused_arguments, dtype=torch.bfloat16, layer=layer, tokens=tokens), family="fused linear cross entropy",
    )  # fmt: skip
