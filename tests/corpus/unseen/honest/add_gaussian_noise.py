"""Gaussian noise from the caller's generator; the noise is a hidden output, from which the backward takes it."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::add_gaussian_noise", outputs=("out", "noise"), hidden=("noise",), non_differentiable=("noise",))
def op(x: Tensor, sigma: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    return (x + sigma * noise).contiguous(), noise


@op.register_fake
def _(x, sigma, generator):
    return x.new_empty(x.shape), x.new_empty(x.shape)


@op.register_backward
def _(grad_out, noise):
    return {"x": grad_out, "sigma": lambda: (grad_out * noise).sum()}


@op.register_samples
def _(make):
    yield Sample(make(4, 3), make(low=0.1, high=1.0), torch.Generator(make.device).manual_seed(3))
    yield Sample(make(6), make(low=0.1, high=1.0), torch.Generator(make.device).manual_seed(0))
