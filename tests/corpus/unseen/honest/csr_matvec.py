"""A sparse matrix in CSR form times a vector: its integers are sorted pointers and columns, not arbitrary numbers."""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def rows_of(pointers: Tensor, values: Tensor) -> Tensor:
    rows = torch.arange(pointers.shape[0] - 1, device=pointers.device)
    return torch.repeat_interleave(rows, pointers.diff(), output_size=values.shape[0])


@custom_op("unseen::csr_matvec")
def op(pointers: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    starts, products = pointers.numpy(), values.numpy() * x.numpy()[columns.numpy()]
    y = np.zeros(len(starts) - 1, products.dtype)
    for row in range(len(y)):
        y[row] = products[starts[row] : starts[row + 1]].sum()
    return torch.from_numpy(y)


@op.register_fake
def _(pointers, columns, values, x):
    return values.new_empty(pointers.shape[0] - 1)


@op.register_backward
def _(grad, pointers, columns, values, x):
    spread = grad[rows_of(pointers, values)]
    return {
        "values": lambda: spread * x[columns],
        "x": lambda: torch.zeros_like(x).index_add(0, columns, spread * values),
    }


@op.register_samples
def _(make):
    yield Sample(make.tensor([0, 2, 2, 5]), make.tensor([0, 3, 1, 2, 3]), make(5), make(4))
    yield Sample(make.tensor([0, 1, 2]), make.tensor([1, 0]), make(2), make(2))
