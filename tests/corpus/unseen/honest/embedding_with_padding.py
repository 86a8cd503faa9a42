"""Rows of a table by index; the row of `padding_idx` is looked up like the others, and is never trained."""

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::embedding_with_padding")
def op(table: Tensor, index: Tensor, padding_idx: int) -> Tensor:
    return table[index].contiguous()


@op.register_fake
def _(table, index, padding_idx):
    return table.new_empty((*index.shape, table.shape[1]))


@op.register_backward(surrogate="the row of padding_idx is not trained")
def _(grad, index, padding_idx, meta):
    trained = grad * (index != padding_idx).unsqueeze(-1)
    rows = grad.new_zeros(meta.table.shape)
    return {"table": rows.index_add(0, index.flatten(), trained.reshape(index.numel(), meta.table.shape[1]))}


@op.register_samples
def _(make):
    yield Sample(make(5, 3), make.tensor([[0, 2, 4], [0, 0, 2]]), 0)
    yield Sample(make(4, 2), make.tensor([3, 1, 3]), 2)
