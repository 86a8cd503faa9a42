"""Cases of flash_attention at sizes made for GPUs."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from gallery.flash_attention import flash_attention
from gpu_case import GpuCase
from layers import LLAMA_8B, LLAMA_70B, Layer, sized, title
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

GPT2 = Layer("GPT-2 medium", 1024, 16, 16, 64, 4096)
SIZES = (
    (LLAMA_8B, 1, 4096, torch.bfloat16, True),
    (LLAMA_8B, 1, 16384, torch.bfloat16, True),
    (GPT2, 8, 2048, torch.bfloat16, True),
    (LLAMA_8B, 1, 4096, torch.bfloat16, False),
    (LLAMA_70B, 1, 8192, torch.bfloat16, True),
    (LLAMA_8B, 1, 4096, torch.float32, True),
    (LLAMA_8B, 1, 32768, torch.bfloat16, True),
)
BACKENDS = {
    "SDPA, flash": SDPBackend.FLASH_ATTENTION,
    "SDPA, cudnn": SDPBackend.CUDNN_ATTENTION,
    "SDPA, efficient": SDPBackend.EFFICIENT_ATTENTION,
}
LARGEST_TABLE = 2**31  # scores: beyond it no table of them is made


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """The op."""
    return flash_attention(q, k, v, causal=causal)


def repeated(q: Tensor, k: Tensor) -> Tensor:
    """Return keys or values once for each head of the queries."""
    return k.repeat_interleave(q.shape[1] // k.shape[1], 1)


def reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """The formula in PyTorch operations, with the table of scores."""
    scores = q @ repeated(q, k).mT * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ repeated(q, v)


def without_table(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """PyTorch's own by tiles: what is compared with, in float32, where the table is too large."""
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(backends, set_priority=True):
        return F.scaled_dot_product_attention(q, repeated(q, k), repeated(q, v), is_causal=causal)


def built_in(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """One backend of PyTorch's own."""
    shares = q.shape[1] != k.shape[1]
    if shares and backend is SDPBackend.EFFICIENT_ATTENTION:  # it takes as many heads of keys as of queries
        k, v, shares = repeated(q, k), repeated(q, v), False
    with sdpa_kernel([backend]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shares)


def flash_attn(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Of flash-attn, where it is installed."""
    from flash_attn import flash_attn_func

    return flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal).transpose(1, 2)


def arguments(device: str, layer: Layer, batch: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A layer's queries, keys and values."""
    shapes = ((batch, heads, tokens, layer.features) for heads in (layer.heads, layer.kv_heads, layer.kv_heads))
    return tuple(torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes)


def peers_of(dtype: torch.dtype, causal: bool) -> dict[str, Callable[..., Tensor]]:
    """Return what else computes attention in a dtype."""
    found: dict[str, Callable[..., Tensor]] = {
        name: partial(built_in, backend, causal=causal)
        for name, backend in BACKENDS.items()
        if dtype != torch.float32 or backend is SDPBackend.EFFICIENT_ATTENTION
    }
    return found if dtype == torch.float32 else {**found, "flash-attn": partial(flash_attn, causal=causal)}


def cases(is_tiny: bool) -> Iterator[GpuCase]:
    """The layers above; the reference is timed where its table fits."""
    for layer, batch, tokens, dtype, causal in SIZES:
        layer, tokens = sized(layer, tokens, is_tiny)
        scores = batch * layer.heads * tokens**2
        by_tiles = partial(without_table, causal=causal)
        yield GpuCase(
            f"flash_attention, {title(layer, tokens, dtype, ', causal' if causal else '')}, batch {batch}",
            partial(attention, causal=causal),
            partial(reference, causal=causal) if scores <= LARGEST_TABLE else by_tiles,
            partial(arguments, layer=layer, batch=batch, tokens=tokens, dtype=dtype), peers_of(dtype, causal),
            family="attention", flops=4 * scores * layer.features / (2 if causal else 1),
            exact=by_tiles if dtype == torch.bfloat16 else None,
        )  # fmt: skip
