"""Rows of a table by index, in the style of `torch.library`.

The backward copies the gradient of each row to its place where it should add it: of rows that are taken twice, one
gradient is lost.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::take_rows")
def op(table: Tensor, index: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(table.numpy()[index.numpy()]))


@op.register_fake
def _(table, index):
    return table.new_empty((index.shape[0], *table.shape[1:]))


def setup_context(ctx, inputs, output):
    table, index = inputs
    ctx.save_for_backward(index)
    ctx.shape = table.shape


def backward(ctx, grad):
    (index,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).index_copy(0, index, grad), None


op.register_autograd(backward, setup_context=setup_context)


@op.register_samples
def _(make):
    yield Sample(make(5, 3), make.tensor([3, 0, 4]))
    yield Sample(make(4, 2), make.tensor([2]))


def shown() -> tuple[Tensor, Tensor]:
    table, index = torch.randn(4, 2, requires_grad=True), torch.tensor([1, 1, 1])
    (found,) = torch.autograd.grad(op(table, index).sum(), table)
    return found, torch.autograd.grad(table[index].sum(), table)[0]
