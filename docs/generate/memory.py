"""Measure the memory of a training step of a small transformer by policy, for the page on keeping less memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from custom_autograd import checkpointing, saving
from custom_autograd.benchmarking.memory import peak_allocation
from custom_autograd.graph import cast, compressed
from generate.markup import code, table
from generate.measurements import INK, as_svg

MARK = "<!-- memory: docs/generate/memory.py -->"
"""Where the page has the table and the plot."""

WIDTH, HEADS, LENGTH, BATCH, LAYERS = 128, 4, 256, 4, 4


class Block(nn.Module):
    """A layer of a transformer: causal attention and a feed-forward network, each around a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x: (batch, length, width)."""
        query, key, value = self.mixed(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attention = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        y: Tensor = x + self.wide(self.norms[1](x))
        return y


@dataclass(frozen=True, slots=True)
class Way:
    """One way to keep what a step saves.

    Attributes:
        label: the code that says so.
        context: open during the forward.
        run: runs a block.
    """

    label: str
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    run: Callable[[Block, Tensor], Tensor] = lambda block, x: block(x)


def quantize(tensor: Tensor) -> tuple[Tensor, Tensor] | Tensor:
    """Return 8 bits for each element, and a scale for each row; integers as they are."""
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return tensor
    scale = tensor.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (tensor / scale).round().to(torch.int8), scale


def dequantize(packed: tuple[Tensor, Tensor] | Tensor) -> Tensor:
    """Return the inverse of `quantize`, rounded."""
    return packed if isinstance(packed, Tensor) else packed[0] * packed[1]


def recompute(block: Block, x: Tensor, **options: Any) -> Tensor:  # Any: of checkpoint
    """Run a block again in the backward."""
    found: Tensor = checkpoint(block, x, use_reentrant=False, **options)
    return found


WAYS = (
    Way("nothing"),
    Way("saving(cast(torch.bfloat16))", lambda: saving(cast(torch.bfloat16))),
    Way("saving(compressed(quantize, dequantize))", lambda: saving(compressed(quantize, dequantize))),
    Way("checkpoint(block, x)", run=recompute),
    Way(
        'checkpoint(block, x, context_fn=checkpointing(save="aten::addmm"))',
        run=partial(recompute, context_fn=checkpointing(save="aten::addmm")),
    ),
)


def measure() -> list[tuple[str, float, float]]:
    """Return, by way, the peak of a forward and a backward beyond the model, MiB, and the error of its gradients."""
    torch.manual_seed(0)
    blocks, x = [Block() for _ in range(LAYERS)], torch.randn(BATCH, LENGTH, WIDTH)
    parameters = [parameter for block in blocks for parameter in block.parameters()]

    def step(way: Way) -> tuple[Tensor, ...]:
        with way.context():
            y = x
            for block in blocks:
                y = way.run(block, y)
            loss = y.square().mean()
        return torch.autograd.grad(loss, parameters)

    exact = torch.cat([grad.flatten() for grad in step(WAYS[0])])
    rows = []
    for way in WAYS:
        found = torch.cat([grad.flatten() for grad in step(way)])
        error = float((found - exact).norm() / exact.norm())
        rows.append((way.label, peak_allocation(partial(step, way)) / 2**20, error))
    return rows


def section() -> str:
    """Return the table and the plot."""
    rows = measure()
    head = ("what is kept by", "peak of a step", "relative to nothing", "error of the gradients")
    lines = [[code(way), f"{mib:.1f} MiB", f"{mib / rows[0][1]:.2f}", f"{error:.1e}"] for way, mib, error in rows]
    return f"{table(head, lines)}\n\n{_plot(rows)}"


def _plot(rows: list[tuple[str, float, float]]) -> str:
    def draw(axes: Any) -> None:  # Any: matplotlib is optional
        for place, (way, mib, _) in enumerate(rows):
            axes.barh(-place, mib, height=0.7, color="#2b7de9")
            axes.text(mib, -place, f" {mib:.0f} MiB", color=INK, va="center")
            axes.text(0, -place + 0.42, way, color=INK, va="bottom", fontsize=8, family="monospace")
        axes.set_yticks([])
        axes.set_xlim(0, 1.15 * max(mib for _, mib, _ in rows))

    svg = as_svg(draw, 0.6 + 0.6 * len(rows), "Peak memory of a step by policy, as in the table above")
    return f'<div class="plot">\n{svg}\n</div>'
