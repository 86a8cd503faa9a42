"""The cross spectrum of two complex signals, x times the conjugate of y, which is not holomorphic in y."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::cross_spectrum")
def op(x: Tensor, y: Tensor) -> Tensor:
    return (x * y.conj()).contiguous()


@op.register_fake
def _(x, y):
    return x.new_empty(x.shape)


@op.register_backward
def _(grad, x, y):
    return {"x": lambda: grad * y, "y": lambda: grad.conj() * x}


@op.register_samples
def _(make):
    yield Sample(make(3, 4, dtype=torch.complex128), make(3, 4, dtype=torch.complex128))
    yield Sample(make(5), make(5)).named("real")
