"""A signal on a new number of points, linear between the old ones, with both ends kept.

The step of the kernel is (length - 1) / (n - 1), which is NaN for a single point.
The reference uses `linspace`, which returns the first point.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def interpolate(x: Tensor, positions: Tensor) -> Tensor:
    lower = positions.floor().long().clamp(0, x.shape[-1] - 1)
    upper = (lower + 1).clamp(max=x.shape[-1] - 1)
    weight = (positions - lower).to(x.dtype)
    return ((1 - weight) * x[..., lower] + weight * x[..., upper]).contiguous()


@custom_op("unseen::resample", reference=True)
def op(x: Tensor, n: int) -> Tensor:
    positions = torch.linspace(0, x.shape[-1] - 1, n, dtype=torch.float64, device=x.device)
    return interpolate(x, positions)


@op.register_kernel("cpu", name="steps", when=lambda x, n: n > 0)
def _(x, n):
    steps = torch.arange(n, dtype=torch.float64)
    return interpolate(x, steps * (x.shape[-1] - 1) / torch.tensor(n - 1))


@op.register_samples
def _(make):
    yield Sample(make(2, 5), 9)
    yield Sample(make(8), 3)


def shown() -> tuple[Tensor, Tensor]:
    x = torch.arange(4.0)
    return op(x, 1), x[:1]
