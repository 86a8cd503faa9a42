"""The square of a tensor, in place.

The backward multiplies by the argument, which by then holds the square: its gradient is 2 x^2 and not 2 x.
At 0 and 1, the values in the author's test, they differ by nothing.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::square_", mutates_args=("x",))
def op(x: Tensor) -> None:
    x.mul_(x)


@op.register_backward
def _(grad, x):
    return {"x": 2 * grad * x}


@op.register_samples
def _(make):
    yield Sample(make(5))
    yield Sample(make(2, 3))


def shown() -> tuple[Tensor, Tensor]:
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = leaf.clone()
    op(x)
    (found,) = torch.autograd.grad(x.sum(), leaf)
    return found, torch.tensor([2.0, 4.0, 6.0])
