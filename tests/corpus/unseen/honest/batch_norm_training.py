"""Batch normalization in training: it updates its running statistics in place, which carry no gradient."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op(
    "unseen::batch_norm_training",
    mutates_args=("running_mean", "running_var"),
    outputs=("out",),
    non_differentiable=("running_mean", "running_var"),
)
def op(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    mean, var = x.mean(0), x.var(0, correction=0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var, momentum)
    return ((x - mean) * torch.rsqrt(var + eps)).contiguous()


@op.register_fake
def _(x, running_mean, running_var, momentum=0.1, eps=1e-5):
    return x.new_empty(x.shape)


@op.register_backward
def _(grad_out, x, eps):
    rstd = torch.rsqrt(x.var(0, correction=0) + eps)
    normal = (x - x.mean(0)) * rstd
    return {"x": rstd * (grad_out - grad_out.mean(0) - normal * (grad_out * normal).mean(0))}


@op.register_samples
def _(make):
    yield Sample(make(6, 3), make(3, requires_grad=False), make(3, low=0.5, high=1.5, requires_grad=False))
    yield Sample(make(4, 2), make(2, requires_grad=False), make(2, low=0.5, high=1.5, requires_grad=False), 0.5)
