"""Quantization to a number of levels in [-1, 1], straight through inside of that range."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::quantize_levels", reference=True)
def op(x: Tensor, levels: int) -> Tensor:
    return (torch.round(x.clamp(-1, 1) * levels) / levels).contiguous()


@op.register_backward(surrogate="straight through: rounding counts as the identity, and the clamp as it is")
def _(grad, x):
    return {"x": grad * (x.abs() <= 1)}


@op.register_samples
def _(make):
    yield Sample(make(3, 4), 8).keeping("levels")
    yield Sample(make(7), 3).keeping("levels")
