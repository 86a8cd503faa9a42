"""Rows in another order: the index must be a permutation, which lets the backward gather where it would scatter."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::apply_permutation")
def op(x: Tensor, order: Tensor) -> Tensor:
    if not torch.equal(order.sort().values, torch.arange(x.shape[0], device=x.device)):
        raise ValueError(f"'order' must be a permutation of {x.shape[0]} rows")
    return x[order].contiguous()


@op.register_fake
def _(x, order):
    return x.new_empty(x.shape)


@op.register_backward
def _(grad, order):
    return {"x": grad[order.argsort()]}


@op.register_samples
def _(make):
    yield Sample(make(4, 3), make.tensor([2, 0, 3, 1]))
    yield Sample(make(5), make.tensor([4, 3, 2, 1, 0]))
    yield Sample(make(3, 2), make.tensor([0, 0, 1])).raises(ValueError, match="permutation of 3 rows", on="cpu")
