"""A piecewise linear curve through knots, constant outside.

At the last knot itself the kernel reads the knot after it; what it finds there is multiplied by 0, unless it is nan.
"""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("unseen::curve", reference=True, non_differentiable=("knots",))
def op(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    last = knots.shape[0] - 1
    right = torch.searchsorted(knots, x.contiguous(), right=True)
    low, high = (right - 1).clamp(0, last), right.clamp(0, last)
    gap = torch.where(high > low, knots[high] - knots[low], 1)
    share = torch.where(high > low, (x - knots[low]) / gap, 0)
    return torch.where(x.isnan(), x, values[low] + share * (values[high] - values[low])).contiguous()


op.register_kernel(
    "cpu",
    cpp_kernel(Path(__file__).with_suffix(".cpp"), "curve"),
    name="cpp",
    layouts="contiguous",
    when=lambda x, knots, values: x.dtype == knots.dtype == values.dtype == torch.float64,
)


@op.register_samples
def _(make):
    yield Sample(
        make(7, dtype=torch.float64), torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64), make(3, dtype=torch.float64)
    )


def shown() -> tuple[Tensor, Tensor]:
    knots = torch.tensor([0.0, 1.0, torch.nan], dtype=torch.float64)[:2]
    return op(knots[1:], knots, knots), knots[1:]
