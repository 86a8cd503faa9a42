"""The logarithm of the mean of exponentials, for values whose exponentials overflow in every dtype."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::log_mean_exp", reference=True)
def op(x: Tensor) -> Tensor:
    return (torch.logsumexp(x, -1) - x.new_full((), x.shape[-1]).log()).contiguous()


@op.register_fake
def _(x):
    return x.new_empty(x.shape[:-1])


@op.register_backward
def _(grad, x):
    return grad.unsqueeze(-1) * torch.softmax(x, -1)


@op.register_samples
def _(make):
    yield Sample(make(3, 5, low=800.0, high=803.0))
    yield Sample(make(4, low=-2000.0, high=-1990.0))
