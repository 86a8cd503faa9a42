"""A small causal transformer over bytes; what is a custom op in it is an argument."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ops import Ops

ROPE_BASE = 10_000.0


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learnt weight."""

    def __init__(self, features: int, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        return self.ops.rms_norm(x, self.weight)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, features: int, heads: int, ops: Ops) -> None:
        super().__init__()
        self.heads = heads
        self.ops = ops
        self.project_in = nn.Linear(features, 3 * features, bias=False)
        self.project_out = nn.Linear(features, features, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Each position reads those before it; x is (batch, length, features)."""
        batch, length, features = x.shape
        shape = (batch, length, self.heads, features // self.heads)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in self.project_in(x).chunk(3, dim=-1))
        query, key = self.ops.rope(query, cos, sin), self.ops.rope(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, length, features))


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added to its input."""

    def __init__(self, features: int, heads: int, ops: Ops) -> None:
        super().__init__()
        self.norm_attention = RMSNorm(features, ops)
        self.attention = Attention(features, heads, ops)
        self.norm_forward = RMSNorm(features, ops)
        self.widen = nn.Linear(features, 4 * features, bias=False)
        self.narrow = nn.Linear(4 * features, features, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer of the transformer; x is (batch, length, features)."""
        x = x + self.attention(self.norm_attention(x), cos, sin)
        return x + self.narrow(F.gelu(self.widen(self.norm_forward(x))))


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out.

    Args:
        vocabulary: number of tokens.
        features: width of the residual stream.
        heads: attention heads in each layer.
        layers: number of blocks.
        context: the longest input.
        ops: the operations that come in two makes.
    """

    def __init__(self, *, vocabulary: int, features: int, heads: int, layers: int, context: int, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.context = context
        self.embedding = nn.Embedding(vocabulary, features)
        self.blocks = nn.ModuleList(Block(features, heads, ops) for _ in range(layers))
        self.norm = RMSNorm(features, ops)
        cos, sin = rotary_angles(context, features // heads)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) int64 -> (batch, length, vocabulary); the output layer is the embedding's transpose."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """The mean loss of predicting each next byte of (batch, context + 1) windows, in nats."""
        logits = self(windows[:, :-1])
        return self.ops.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def rotary_angles(context: int, features: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each (context, features / 2)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, features, 2).float() / features)
    angles = torch.outer(torch.arange(context).float(), frequencies)
    return angles.cos(), angles.sin()
