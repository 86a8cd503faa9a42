"""A matrix with given blocks on its diagonal; the blocks are a list, and each may have another shape."""

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::block_diagonal")
def op(blocks: list[Tensor]) -> Tensor:
    rows, columns = (sum(block.shape[dim] for block in blocks) for dim in (0, 1))
    matrix, row, column = blocks[0].new_zeros((rows, columns)), 0, 0
    for block in blocks:
        matrix[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return matrix


@op.register_fake
def _(blocks):
    return blocks[0].new_empty([sum(block.shape[dim] for block in blocks) for dim in (0, 1)])


@op.register_backward
def _(grad, meta):
    gradients, row, column = [], 0, 0
    for block in meta.blocks:
        rows, columns = block.shape
        gradients.append(grad[row : row + rows, column : column + columns].clone())
        row, column = row + rows, column + columns
    return {"blocks": gradients}


@op.register_samples
def _(make):
    yield Sample([make(2, 3), make(1, 1), make(3, 2)])
    yield Sample([make(2, 2)])
