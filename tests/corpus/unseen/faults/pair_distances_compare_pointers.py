"""The squared distances between two sets of points.

The kernel has a shortcut for the distances within one set, computed once for each pair, and takes it if both arguments
begin at the same address. A view of the same memory with other strides is another set.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::pair_distances", reference=True)
def op(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1).contiguous()


@op.register_kernel("cpu", name="symmetric")
def _(x, y):
    if x.data_ptr() != y.data_ptr() or x.shape != y.shape:
        return (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1).contiguous()
    distances = x.new_zeros((x.shape[0], x.shape[0]))
    for i in range(x.shape[0]):
        distances[i, i + 1 :] = (x[i + 1 :] - x[i]).square().sum(-1)
    return distances + distances.mT


@op.register_samples
def _(make):
    yield Sample(make(4, 3), make(5, 3))
    yield Sample(make(3, 3), make(3, 3))


def shown() -> tuple[Tensor, Tensor]:
    x = torch.arange(9.0).reshape(3, 3)
    return op(x, x.t()), op(x, x.t().contiguous())
