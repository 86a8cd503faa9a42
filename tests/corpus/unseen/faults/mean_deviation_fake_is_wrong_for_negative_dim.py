"""The mean absolute deviation along a dimension.

The fake cuts the dimension out with `shape[:dim] + shape[dim + 1:]`, which is the whole shape and more for dim = -1.
The kernel normalizes `dim`, so eager calls are right and compiled ones are not.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::mean_deviation")
def op(x: Tensor, dim: int = 0) -> Tensor:
    return (x - x.mean(dim, keepdim=True)).abs().mean(dim).contiguous()


@op.register_fake
def _(x, dim=0):
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :])


@op.register_backward
def _(grad, x, dim):
    sign = torch.sign(x - x.mean(dim, keepdim=True))
    return {"x": (sign - sign.mean(dim, keepdim=True)) * grad.unsqueeze(dim) / x.shape[dim]}


@op.register_samples
def _(make):
    yield Sample(make(4, 3))
    yield Sample(make(2, 5, 3), dim=1)


def shown() -> tuple[Tensor, Tensor]:
    found = op(torch.empty(4, 3, device="meta"), -1)
    return torch.tensor(found.numel()), torch.tensor(4)
