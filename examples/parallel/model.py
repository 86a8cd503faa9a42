"""A small causal transformer whose norms, rotations, attention, gates and loss are ops of the gallery.

Nothing in it knows of ranks: `plans.py` says which tensors are cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flash_attention import flash_attention
from gated_units import swiglu
from rms_norm import rms_norm
from rope import rope
from softmax_cross_entropy import softmax_cross_entropy
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model: small enough for a test, and divisible by two ranks."""

    vocabulary: int = 32
    features: int = 16
    heads: int = 4
    hidden: int = 24
    blocks: int = 4
    length: int = 8


class Norm(nn.Module):
    """Root-mean-square normalisation of the last dimension."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features).uniform_(0.5, 1.5))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, features)."""
        return rms_norm(x, self.weight)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query = nn.Linear(sizes.features, sizes.features, bias=False)
        self.key = nn.Linear(sizes.features, sizes.features, bias=False)
        self.value = nn.Linear(sizes.features, sizes.features, bias=False)
        self.out = nn.Linear(sizes.features, sizes.features, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, length, features); cos, sin: (length, features / heads / 2)."""
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        mixed = flash_attention(rope(q, cos, sin), rope(k, cos, sin), v, causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """Return (batch, heads, length, features of a head)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two matrix products with a gate in between."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.features, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.features, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, features)."""
        return self.down(swiglu(self.gate(x), self.up(x)))


class Block(nn.Module):
    """One layer: attention and feed-forward, each normalised before and added to its input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = Norm(sizes.features)
        self.attention = Attention(sizes)
        self.forward_norm = Norm(sizes.features)
        self.feed_forward = FeedForward(sizes)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, length, features)."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.forward_norm(x))


class Transformer(nn.Module):
    """Tokens in, logits of the next token out; a stage of a pipeline is one without some of its parts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding: nn.Embedding | None = nn.Embedding(sizes.vocabulary, sizes.features)
        self.blocks = nn.ModuleDict({str(number): Block(sizes) for number in range(sizes.blocks)})
        self.norm: Norm | None = Norm(sizes.features)
        self.head: nn.Linear | None = nn.Linear(sizes.features, sizes.vocabulary, bias=False)
        angles = torch.outer(torch.arange(sizes.length), 0.1 ** torch.arange(sizes.features // sizes.heads // 2))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: tokens (batch, length), or in a later stage (batch, length, features)."""
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            x = block(x, self.cos, self.sin)
        x = x if self.norm is None else self.norm(x)
        return x if self.head is None else self.head(x)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses of all tokens; logits: (batch, length, vocabulary), labels: (batch, length)."""
    return softmax_cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def make_model(sizes: Sizes, seed: int = 0) -> Transformer:
    """Return the same model on every rank, in float64."""
    torch.manual_seed(seed)
    return Transformer(sizes).double()
