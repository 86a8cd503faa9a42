"""Rows of a table by index, with a vmap rule that turns a batch of tables into one long table.

The rule adds the offset of each table to a batched index, and forgets it for an index that all samples share:
every sample then reads the first table.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::lookup")
def op(table: Tensor, index: Tensor) -> Tensor:
    return table[index].contiguous()


@op.register_fake
def _(table, index):
    return table.new_empty((index.shape[0], table.shape[1]))


@op.register_backward
def _(grad, index, meta):
    return {"table": grad.new_zeros(meta.table.shape).index_add(0, index, grad)}


@op.register_vmap
def _(info, in_dims, table, index):
    table_dim, index_dim = in_dims
    index = index.expand(info.batch_size, -1) if index_dim is None else index.movedim(index_dim, 0)
    if table_dim is not None:
        table = table.movedim(table_dim, 0)
        if index_dim is not None:
            index = index + table.shape[1] * torch.arange(info.batch_size, device=index.device).unsqueeze(1)
        table = table.flatten(0, 1)
    return op(table, index.reshape(-1)).reshape(*index.shape, table.shape[1]), 0


@op.register_samples
def _(make):
    yield Sample(make(5, 3), make.tensor([0, 2, 2, 4]))
    yield Sample(make(3, 2), make.tensor([1]))


def shown() -> tuple[Tensor, Tensor]:
    tables, index = torch.arange(24.0).reshape(3, 4, 2), torch.tensor([0, 3])
    found = torch.vmap(op, in_dims=(0, None))(tables, index)
    return found, tables[:, index]
