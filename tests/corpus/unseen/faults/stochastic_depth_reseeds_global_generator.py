"""Stochastic depth: the residual branch of each sample is dropped with probability `p`, by a seed.

The kernel seeds the global generator of PyTorch, where a generator of its own would do.
After each call the rest of the program draws the same numbers again.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::stochastic_depth", outputs=("out", "scale"), hidden=("scale",), non_differentiable=("scale",))
def op(x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    keep = torch.rand(x.shape[0]) >= p
    scale = (keep.to(x.dtype) / (1 - p)).reshape(-1, *[1] * (x.dim() - 1))
    return (x * scale).contiguous(), scale


@op.register_fake
def _(x, p, seed):
    return x.new_empty(x.shape), x.new_empty((x.shape[0], *[1] * (x.dim() - 1)))


@op.register_backward
def _(grad_out, scale):
    return {"x": grad_out * scale}


@op.register_samples
def _(make):
    yield Sample(make(6, 3), 0.5, 7).keeping("p")
    yield Sample(make(4, 2, 2), 0.2, 3).keeping("p")


def shown() -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        right = torch.rand(3)
        torch.manual_seed(1)
        op(torch.ones(4, 1), 0.5, 7)
        return torch.rand(3), right
