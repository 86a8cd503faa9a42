"""A recursive filter over time, y[t] = a y[t-1] + x[t], with a coefficient for each channel.

The gradient of the signal is the same filter run backward in time, so the rule has no loop.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::first_order_filter")
def op(x: Tensor, a: Tensor) -> Tensor:
    y, state = x.new_empty(x.shape), x.new_zeros(x.shape[:1])
    for t in range(x.shape[1]):
        state = a * state + x[:, t]
        y[:, t] = state
    return y


@op.register_fake
def _(x, a):
    return x.new_empty(x.shape)


@op.register_backward
def _(grad, a, output):
    grad_x = op(grad.flip(1), a).flip(1)
    delayed = torch.nn.functional.pad(output, (1, 0))[:, :-1]
    return {"x": grad_x, "a": lambda: (grad_x * delayed).sum(1)}


@op.register_samples
def _(make):
    yield Sample(make(2, 7), make(2, low=0.1, high=0.9))
    yield Sample(make(3, 1), make(3, low=-0.9, high=0.9))
