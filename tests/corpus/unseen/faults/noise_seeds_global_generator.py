"""Noise from a seed, which the kernel gives to the generator that the whole process uses."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::seeded_noise", outputs=("out", "noise"), hidden=("noise",), tags=torch.Tag.nondeterministic_seeded)
def op(x: Tensor, sigma: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    noise = torch.randn(x.shape, device=x.device, dtype=torch.float64).to(x.dtype)
    return (x + sigma * noise).contiguous(), noise


@op.register_fake
def _(x, sigma, seed=0):
    return x.new_empty(x.shape), x.new_empty(x.shape)


op.register_backward(lambda grad_out: {"x": grad_out})


@op.register_samples
def _(make):
    yield Sample(make(20), 0.5)
    yield Sample(make(4, 5), 0.25)


def shown() -> tuple[Tensor, Tensor]:
    drawn = []
    for start in (1, 2):
        torch.manual_seed(start)
        op(torch.ones(3), 0.5)
        drawn.append(torch.rand(1))
    return torch.equal(*drawn) * torch.ones(1), torch.zeros(1)
