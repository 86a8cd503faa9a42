"""The solution of a lower triangular system in CSR form, whose rows end with their diagonal element.

The backward is the same op with the transposed matrix.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::sparse_triangular_solve")
def op(pointers: Tensor, columns: Tensor, values: Tensor, b: Tensor, transpose: bool = False) -> Tensor:
    starts, where, entries, x = pointers.numpy(), columns.numpy(), values.numpy(), np.array(b.numpy(), order="C")
    for i in reversed(range(len(x))) if transpose else range(len(x)):
        left, diagonal = slice(starts[i], starts[i + 1] - 1), starts[i + 1] - 1
        if not transpose:
            x[i] -= entries[left] @ x[where[left]]
        x[i] /= entries[diagonal]
        if transpose:
            x[where[left]] -= entries[left] * x[i]
    return torch.from_numpy(x)


@op.register_fake
def _(pointers, columns, values, b, transpose=False):
    return b.new_empty(b.shape)


@op.register_backward
def _(grad, pointers, columns, values, output, transpose):
    solved = op(pointers, columns, values, grad, not transpose)

    def for_values():
        counts, rows = pointers.diff(), torch.arange(output.shape[0], device=output.device)
        rows = torch.repeat_interleave(rows, counts, output_size=values.shape[0])
        return -output[rows] * solved[columns] if transpose else -solved[rows] * output[columns]

    return {"b": solved, "values": for_values}


@op.register_samples
def _(make):
    pointers, columns = make.tensor([0, 1, 3, 6]), make.tensor([0, 0, 1, 0, 1, 2])
    yield Sample(pointers, columns, make(6, low=1.0, high=2.0), make(3))
    yield Sample(make.tensor([0, 1, 2]), make.tensor([0, 1]), make(2, low=1.0, high=2.0), make(2), transpose=True)
