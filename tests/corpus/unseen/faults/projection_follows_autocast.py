"""A projection with a scale, (x @ weight) * scale.

The op has no autocast policy, so under autocast its matrix product runs in bfloat16 and the op returns bfloat16, where
its fake has promised the dtype of `x`.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::projection")
def op(x: Tensor, weight: Tensor, scale: float) -> Tensor:
    return (x @ weight) * scale


@op.register_fake
def _(x, weight, scale):
    return x.new_empty((x.shape[0], weight.shape[1]))


@op.register_backward
def _(grad, x, weight, scale):
    return {"x": lambda: scale * (grad @ weight.mT), "weight": lambda: scale * (x.mT @ grad)}


@op.register_samples
def _(make):
    yield Sample(make(4, 3), make(3, 5), 0.5)
    yield Sample(make(2, 8), make(8, 2), 2.0)


def shown() -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(4, 16), torch.randn(16, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = op(x, weight, 1.0)
    return torch.tensor(found.dtype.itemsize), torch.tensor(x.dtype.itemsize)
