"""Ops with a line of shapes that holds, of which `false_lines` are made."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from corpus.forms import Declared, Rule
from corpus.mutant import Honest, honest
from custom_autograd.schema.samples import Sample, TensorFactory

Samples = Callable[[TensorFactory], Any]  # Any: samples


def of_shapes(*shapes: tuple[int, ...]) -> Samples:
    """One sample with tensors of these shapes."""

    def samples(make: TensorFactory) -> Iterator[Sample]:
        yield Sample(*(make(*shape) for shape in shapes))

    return samples


def op(schema: str, default: Rule, samples: Samples, shapes: str, **pieces: Any) -> Declared:  # Any: other pieces
    """An op with a line, whose function is its only kernel and its reference."""
    return Declared(schema=schema, default=default, samples=samples, shapes=shapes, **pieces)


def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Root-mean-square normalisation, and its statistic."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return x * rstd * weight, rstd


def batch_norm(x: Tensor) -> Tensor:
    """Normalisation over the rows."""
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A matrix product."""
    return torch.nn.functional.linear(x, weight, bias)


def swap_pairs(x: Tensor, weight: Tensor) -> Tensor:
    """Neighbours (2 i, 2 i + 1) swap, weighted by i."""
    return (x.unflatten(-1, (-1, 2)).flip(-1) * weight.unsqueeze(-1)).flatten(-2)


def stencil(x: Tensor) -> Tensor:
    """The second difference."""
    padded = torch.nn.functional.pad(x, (1, 1))
    return padded[..., 2:] - 2 * x + padded[..., :-2]


def mean_of_pairs(x: Tensor) -> Tensor:
    """Each two neighbouring rows get their mean."""
    return x.unflatten(0, (-1, 2)).mean(1, keepdim=True).expand(-1, 2, -1).flatten(0, 1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of one head, and the logarithms of its sums."""
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def groups_of_heads(q: Tensor, k: Tensor) -> Tensor:
    """Products of queries with the keys of their group; heads of one key lie side by side."""
    return q * k.repeat_interleave(q.shape[0] // k.shape[0], 0)


def track_mean(x: Tensor, running: Tensor) -> Tensor:
    """Keeps a running mean."""
    running.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x * 2


def count(labels: Tensor, counts: Tensor) -> None:
    """Counts labels."""
    counts.add_(torch.bincount(labels, minlength=counts.shape[0]).to(counts.dtype))


def shares(xs: list[Tensor]) -> list[Tensor]:
    """Each element divided by the rows of all."""
    return [x / sum(len(one) for one in xs) for x in xs]


def labelled(make: TensorFactory) -> Iterator[Sample]:
    """Labels, and counts of them."""
    yield Sample(torch.tensor([0, 1, 1, 2, 3, 0], device=make.device), make(4, requires_grad=False))


def picked(make: TensorFactory) -> Iterator[Sample]:
    """Rows, and which of them are taken."""
    yield Sample(make(6, 3), torch.tensor([0, 5, 2, 2], device=make.device))


def listed(make: TensorFactory) -> Iterator[Sample]:
    """A list of two matrices."""
    yield Sample([make(4, 3), make(2, 5)])


def tracked(make: TensorFactory) -> Iterator[Sample]:
    """A running mean has no gradient."""
    yield Sample(make(6, 3), make(3, requires_grad=False))


ONE = "(Tensor x) -> Tensor"
TWO = "(Tensor x, Tensor weight) -> Tensor"
ROWS = of_shapes((6, 3))
NORM = "(Tensor x, Tensor weight) -> (Tensor out, Tensor rstd)"
ATTENTION = "(Tensor q, Tensor k, Tensor v) -> (Tensor out, Tensor lse)"
HEADS = of_shapes((4, 3), (5, 3), (5, 4))
TIMES = op(
    TWO,
    lambda x, weight: x * weight,
    of_shapes((6, 3), (3,)),
    "x: n d, weight: d -> output: n d",
    has_reference=False,
    backward=lambda grad, x, weight: {"x": lambda: grad * weight, "weight": lambda: (grad * x).sum(0)},
)
EXP = op(
    ONE,
    lambda x: x.exp(),
    ROWS,
    "x: n d -> output: n d",
    has_reference=False,
    backward=lambda grad, x: grad * x.exp(),
)
TRACK = op(
    "(Tensor x, Tensor(a!) running) -> Tensor",
    track_mean,
    tracked,
    "x: [n] d, running: d -> output: [n] d",
    has_reference=False,
    mutates=("running",),
    non_differentiable=("running",),
    backward=lambda grad: {"x": grad * 2},
)

HONEST_LINES: dict[str, Declared] = {
    "rows of a norm": op(NORM, rms_norm, of_shapes((4, 6), (6,)), "x: *b [d], weight: [d] -> out: *b [d], rstd: *b 1"),
    "rows of a product": op(
        "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
        linear,
        of_shapes((4, 6), (3, 6), (3,)),
        "x: *b [i], weight: o [i], bias?: o -> output: *b o",
    ),
    "queries of attention": op(
        ATTENTION, attention, HEADS, "q: m [f], k: [n] [f], v: [n] [e] -> out: m [e], lse: m", hidden=("lse",)
    ),
    "heads of one key": op(
        "(Tensor q, Tensor k) -> Tensor",
        groups_of_heads,
        of_shapes((6, 5), (2, 5)),
        "q: (k g) f, k: k f -> output: (k g) f",
    ),
    "interleaved pairs": op(TWO, swap_pairs, of_shapes((3, 8), (4,)), "x: n (d 2), weight: d -> output: n (d 2)"),
    "a list": op("(Tensor[] xs) -> Tensor[]", shares, listed, "xs: [n] d -> output: [n] d"),
    "a broadcast bias": op(
        "(Tensor x, Tensor bias) -> Tensor",
        lambda x, bias: x + bias,
        of_shapes((4, 3), (1, 3)),
        "x: n d, bias: #n #d -> output: n d",
    ),
    "a sum": op(ONE, lambda x: x.sum(0), ROWS, "x: n d -> output: d"),
    "a gradient that is a sum": TIMES,
    "a running mean": TRACK,
}
"""Lines that hold, by what they say."""

TRUE_LINES: tuple[Honest, ...] = tuple(
    honest(f"line_{title.replace(' ', '_')}", f"a line that holds: {title}", form)
    for title, form in HONEST_LINES.items()
)
