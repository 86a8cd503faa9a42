"""Ops with lines of shapes and rules of sharding, which the tests run with DTensors."""

from dataclasses import dataclass

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor

from custom_autograd import custom_op

NAMES = ("all_gather_single_autograd", "all_gather_tensor_autograd")  # the second is deprecated from torch 2.13 on
gather = next(getattr(collectives, name) for name in NAMES if hasattr(collectives, name))


@custom_op("sharding_tests::rms_norm", shapes="x: *b [d], weight: [d] -> output: *b [d]", reference=True)
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


@custom_op("sharding_tests::total", shapes="x: n [d] -> output: ", reference=True)
def total(x: Tensor) -> Tensor:
    return x.logsumexp(-1).sum()


@custom_op("sharding_tests::heads", shapes="q: (k g) [d], k: k [d] -> output: (k g)", reference=True)
def heads(q: Tensor, k: Tensor) -> Tensor:
    return (q * k.repeat_interleave(q.shape[0] // k.shape[0], 0)).sum(-1)


@custom_op("sharding_tests::reduce", reference=True)
def reduce(x: Tensor, mode: str, keeps: bool, steps: list[int], scale: float = 1.0) -> Tensor:
    y = x.sum(-1) if mode == "sum" else x
    y = y.float() if keeps else y
    return (y * len(steps)).repeat_interleave(steps[0], 0) * scale


@reduce.register_shapes
def _(mode, steps):
    rows = "n" if steps[0] == 1 else "_"
    return f"x: {'n' if steps[0] == 1 else '[n]'} d -> output: {rows}{'' if mode == 'sum' else ' d'}"


@custom_op("sharding_tests::keyword", shapes="x: n d, weight?: d -> output: n d", reference=True)
def keyword(x: Tensor, *, weight: Tensor | None = None) -> Tensor:
    return x.sin() if weight is None else x.sin() * weight


@custom_op("sharding_tests::optional", shapes="x: n d, bias?: d -> output: n d", reference=True)
def optional(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.exp() if bias is None else x.exp() + bias


@custom_op("sharding_tests::products", shapes="xs: n d, w: d -> outputs: n", reference=True, outputs=("outputs",))
def products(xs: list[Tensor], w: Tensor) -> list[Tensor]:
    return [x @ w for x in xs]


@dataclass
class Layer:
    weight: Tensor
    bias: Tensor | None


@custom_op("sharding_tests::dense", shapes="layer_weight: o i, layer_bias?: o, x: n [i] -> output: n o", reference=True)
def dense(layer: Layer, x: Tensor) -> Tensor:
    product = x @ layer.weight.mT
    return product if layer.bias is None else product + layer.bias


@custom_op("sharding_tests::parts", shapes="weights: o i, x: n [i] -> output: n o", reference=True)
def parts(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    return sum((x @ weight.mT for weight in weights.values()), x.new_zeros(()))


@custom_op("sharding_tests::add_", shapes="x: n d, y: n d ->", mutates_args="x")
def add_(x: Tensor, y: Tensor) -> None:
    x += y


@custom_op("sharding_tests::gathered", shapes="x: [n] d, at: m -> output: m d", reference=True)
def gathered(x: Tensor, at: Tensor) -> Tensor:
    return x[at]


@custom_op("sharding_tests::pointwise", tags=torch.Tag.pointwise, reference=True)
def pointwise(x: Tensor, y: Tensor, mode: str = "double") -> Tensor:
    return (x * y).float() if mode == "float" else x * y


@custom_op("sharding_tests::constant_weight", reference=True, non_differentiable=("weight",))
def constant_weight(x: Tensor, weight: Tensor) -> Tensor:
    return torch.sin(x) * weight


@custom_op("sharding_tests::by_reference", reference=True)
def by_reference(x: Tensor, weight: Tensor) -> Tensor:
    return x.softmax(-1) * weight


@custom_op("sharding_tests::opaque")
def opaque(x: Tensor) -> Tensor:
    return x * 2


opaque.register_fake(lambda x: torch.empty_like(x))
opaque.register_backward(lambda grad: 2 * grad)


# --------------------------------------------------------------------------------- dimensions that rules cut


@custom_op(
    "sharding_tests::attention",
    outputs=("out", "lse"),
    hidden=("lse",),
    shapes="q: b m [f], k: b [n f], v: b [n] e -> out: b m e, lse: b m",
    reference=True,
)
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@attention.register_sharding("n")
def _(out, lse, group):
    lses, outs = (gather(t.unsqueeze(0).contiguous(), 0, group) for t in (lse, out))
    return (outs * lses.softmax(0).unsqueeze(-1)).sum(0)


@custom_op(
    "sharding_tests::cross_entropy",
    outputs=("loss", "lse"),
    hidden=("lse",),
    shapes="logits: n [c], labels: n -> loss: n, lse: n",
    reference=True,
)
def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    lse = logits.logsumexp(-1)
    picked = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(labels < 0, 0, lse - picked), lse


def own_labels(labels, logits, start):
    """Return the labels of this rank's classes from 0, and -1 for those of others."""
    own = labels - start
    return {"labels": own.where((own >= 0) & (own < logits.shape[1]), -1)}


@cross_entropy.register_sharding("c", arguments=own_labels)
def _(loss, lse, labels, logits, start, group):
    picked = torch.where(own_labels(labels, logits, start)["labels"] < 0, 0, lse - loss)
    both = torch.stack([lse, picked]).unsqueeze(0)
    lses, picks = gather(both, 0, group).unbind(1)
    return lses.logsumexp(0) - picks.sum(0)


@custom_op("sharding_tests::dropout", shapes="x: [n] d -> output: [n] d", reference=True)
def dropout(x: Tensor, seed: int, offset: int = 0) -> Tensor:
    row = torch.arange(x.shape[0], device=x.device) + offset
    return x * ((row * 7919 + seed) % 5 > 1).unsqueeze(-1)


@dropout.register_sharding("n", arguments=lambda offset, start: {"offset": offset + start})
def _(output):
    return output


@custom_op("sharding_tests::smooth", shapes="x: [n] d -> output: [n] d", reference=True)
def smooth(x: Tensor) -> Tensor:
    return x + 0.5 * torch.cat([torch.zeros_like(x[:1]), x[:-1]])


def with_halo(x, group, index):
    """Return the slice with the row before it, which the rank before has."""
    last = gather(x[-1:].contiguous(), 0, group)
    before = torch.cat([torch.zeros_like(last[:1]), last[:-1]])
    return {"x": torch.cat([before.narrow(0, index, 1), x])}


@smooth.register_sharding("n", arguments=with_halo)
def _(output):
    return output[1:]
