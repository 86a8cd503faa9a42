"""Numbers on a grid, with the straight-through gradient.

The kernel rounds by floor(x + 1/2), where the grid is defined with halves to even: what lies between two steps differs.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op

STRAIGHT = "straight through"


@custom_op("unseen::fixed_point", non_differentiable=("scale",))
def op(x: Tensor, scale: Tensor) -> Tensor:
    return (torch.floor(x / scale + 0.5) * scale).contiguous()


@op.register_reference(surrogate=STRAIGHT)
def _(x, scale):
    return (x + ((x / scale).round() * scale - x).detach()).contiguous()


@op.register_fake
def _(x, scale):
    return x.new_empty(torch.broadcast_shapes(x.shape, scale.shape), dtype=torch.result_type(x, scale))


@op.register_samples
def _(make):
    yield Sample(make(5), make.tensor(0.1))
    yield Sample(make(2, 3), make.tensor(0.25))


def shown() -> tuple[Tensor, Tensor]:
    return op(torch.tensor([0.5]), torch.tensor(1.0)), torch.zeros(1)
