"""A piecewise linear curve through knots, which must ascend; the search is linear, where the reference's is binary."""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import numpy_kernel


@custom_op("unseen::piecewise_linear", reference=True, non_differentiable=("knots",))
def op(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    if x.element_size() < 4:
        raise TypeError("expected at least 32 bits: gradients of 'values' are sums")
    last = knots.shape[0] - 1
    right = torch.searchsorted(knots, x.contiguous(), right=True)
    low, high = (right - 1).clamp(0, last), right.clamp(0, last)
    gap = torch.where(high > low, knots[high] - knots[low], 1)
    share = torch.where(high > low, (x - knots[low]) / gap, 0)
    return torch.where(x.isnan(), x, values[low] + share * (values[high] - values[low])).contiguous()


@op.register_kernel("cpu", name="numpy", when=lambda x: x.dtype in (torch.float32, torch.float64))
@numpy_kernel
def _(x, knots, values):
    last = len(knots) - 1
    right = (knots <= x[..., None]).sum(-1)
    right = np.where(np.isnan(x), last + 1, right)
    low, high = np.clip(right - 1, 0, last), np.clip(right, 0, last)
    gap = np.where(high > low, knots[high] - knots[low], 1)
    share = np.where(high > low, (x - knots[low]) / gap, 0)
    out = values[low] + share * (values[high] - values[low])
    return np.array(np.where(np.isnan(x), x, out), dtype=x.dtype, order="C")


@op.register_samples
def _(make):
    yield Sample(make(7, low=0.1, high=0.9), make.tensor([0.0, 0.5, 1.0]), make(3))
    yield Sample(make(2, 3, low=-1.0, high=3.0), make.tensor([0.0, 0.7, 1.3, 2.0]), make(4))
