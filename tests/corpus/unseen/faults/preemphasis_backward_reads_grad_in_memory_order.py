"""The pre-emphasis filter of speech, y[t] = x[t] - a x[t-1], with a kernel for its gradient.

The kernel of the gradient flattens its input in memory order, which is the order of its elements only if it is
contiguous: `ravel(order="K")` was chosen to avoid a copy.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::preemphasis")
def op(x: Tensor, a: float) -> Tensor:
    y = np.array(x.numpy(), order="C")
    y[..., 1:] -= a * x.numpy()[..., :-1]
    return torch.from_numpy(y)


@custom_op("unseen::preemphasis_grad")
def preemphasis_grad(grad_y: Tensor, a: float) -> Tensor:
    incoming = grad_y.numpy().ravel(order="K").reshape(grad_y.shape)
    result = np.array(incoming, order="C")
    result[..., :-1] -= a * incoming[..., 1:]
    return torch.from_numpy(result)


@op.register_fake
def _(x, a):
    return x.new_empty(x.shape)


@preemphasis_grad.register_fake
def _(grad_y, a):
    return grad_y.new_empty(grad_y.shape)


@op.register_backward
def _(grad, a):
    return preemphasis_grad(grad, a)


@preemphasis_grad.register_backward
def _(grad, a):
    return op(grad, a)


@op.register_samples
def _(make):
    yield Sample(make(2, 8), 0.97)
    yield Sample(make(11), 0.5)


def shown() -> tuple[Tensor, Tensor]:
    x, grad = torch.randn(3, 4, requires_grad=True), torch.arange(12.0).reshape(4, 3).t()
    (found,) = torch.autograd.grad(op(x, 0.9), x, grad)
    (right,) = torch.autograd.grad(op(x, 0.9), x, grad.contiguous())
    return found, right
