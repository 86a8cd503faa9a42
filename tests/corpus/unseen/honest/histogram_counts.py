"""How many values are in each bin between sorted edges: integers, so there is no gradient and no backward."""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::histogram_counts")
def op(x: Tensor, edges: Tensor) -> Tensor:
    if edges.shape[0] < 2:
        raise ValueError(f"'edges' must have at least two elements, found {edges.shape[0]}")
    return torch.from_numpy(np.histogram(x.numpy(), edges.numpy())[0].astype(np.int64))


@op.register_fake
def _(x, edges):
    if edges.shape[0] < 2:
        raise ValueError(f"'edges' must have at least two elements, found {edges.shape[0]}")
    return x.new_empty(edges.shape[0] - 1, dtype=torch.int64)


@op.register_samples
def _(make):
    yield Sample(make(9), make.tensor([-2.0, -1.0, 0.5, 2.0]))
    yield Sample(make(2, 4), make.tensor([-1.0, 1.0]))
    yield Sample(make(3), make.tensor([0.0])).raises(ValueError, match="at least two elements")
