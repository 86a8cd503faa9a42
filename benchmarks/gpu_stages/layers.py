"""Sizes of layers of the models that gallery ops are measured on with a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layer:
    """The sizes of a layer of a language model.

    Attributes:
        name: of the model.
        hidden: features of the residual stream.
        heads: of queries.
        kv_heads: of keys and values.
        features: of one head.
        inner: of the gated unit.
        vocabulary: classes of the loss.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    features: int
    inner: int
    vocabulary: int = 128256


LLAMA_8B = Layer("Llama 8B", 4096, 32, 8, 128, 14336)
LLAMA_70B = Layer("Llama 70B", 8192, 64, 8, 128, 28672)
TINY = Layer("tiny", 64, 4, 2, 16, 96, vocabulary=33)


def sized(layer: Layer, tokens: int, is_tiny: bool) -> tuple[Layer, int]:
    """Return the layer and a number of tokens, or small ones for a rehearsal."""
    return (TINY, 32) if is_tiny else (layer, tokens)


def title(layer: Layer, tokens: int, dtype: torch.dtype, more: str = "") -> str:
    """Return the name of a case: "Llama 8B, 16k tokens, bfloat16"."""
    count = f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
    return f"{layer.name}, {count} tokens, {str(dtype).removeprefix('torch.')}{more}"
