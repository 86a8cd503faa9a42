"""Trains one model on given batches, and keeps what has to be compared afterwards."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from model import LanguageModel
from ops import Ops

LEARNING_RATE = 2e-3
WARM_UP = 50  # steps in which the learning rate rises
UNTIMED = 3  # steps left out of the speed: caches fill, the compiler runs


@dataclass(frozen=True)
class Size:
    """The shape of the model and of its batches."""

    vocabulary: int = 256
    features: int = 96
    heads: int = 4
    layers: int = 3
    context: int = 128
    batch: int = 8


@dataclass
class Run:
    """What one training left behind.

    Attributes:
        name: what was trained.
        losses: one for each step, in nats.
        seconds: wall time of each step.
        first_gradients: of every parameter, at the first step.
        model: the trained model.
        tokens_in_step: bytes that one step learns from.
    """

    name: str
    model: LanguageModel
    tokens_in_step: int
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first_gradients: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """The speed at the median step; the first steps do not count."""
        return self.tokens_in_step / median(self.seconds[UNTIMED:] or self.seconds)


def learning_rate(step: int, steps: int) -> float:
    """Rises linearly, then falls along a cosine to a tenth."""
    return LEARNING_RATE * min((step + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(
    name: str,
    ops: Ops,
    batches: Tensor,
    size: Size,
    *,
    seed: int,
    compiled: bool = False,
    progress: Callable[[Iterable[Tensor], str], Iterable[Tensor]] = lambda windows, _: windows,
) -> Run:
    """Trains a fresh model on each of the batches once.

    Args:
        name: for the report.
        ops: the operations that come in two makes.
        batches: (steps, batch, context + 1), int64.
        size: the shape of the model.
        seed: of the initial weights.
        compiled: whether the loss runs through `torch.compile(fullgraph=True)`.
        progress: wraps the batches and shows how far the run is.
    """
    torch.manual_seed(seed)
    model = LanguageModel(
        vocabulary=size.vocabulary,
        features=size.features,
        heads=size.heads,
        layers=size.layers,
        context=size.context,
        ops=ops,
    )
    loss_of = torch.compile(model.loss, fullgraph=True) if compiled else model.loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    run = Run(name, model, tokens_in_step=size.batch * size.context)
    for step, windows in enumerate(progress(batches, name)):
        began = time.perf_counter()
        optimizer.param_groups[0]["lr"] = learning_rate(step, len(batches))
        optimizer.zero_grad()
        loss = loss_of(windows)
        loss.backward()
        if step == 0:
            run.first_gradients = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.losses.append(loss.item())
        run.seconds.append(time.perf_counter() - began)
    return run


@torch.no_grad()
def sample(model: LanguageModel, prompt: str, *, length: int, seed: int, temperature: float = 0.7) -> str:
    """Continues a prompt by `length` bytes."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([list(prompt.encode())])
    for _ in range(length):
        logits = model(tokens[:, -model.context :])[:, -1] / temperature
        tokens = torch.cat((tokens, torch.multinomial(logits.softmax(-1), 1, generator=generator)), dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")
