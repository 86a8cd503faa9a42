"""The activation mish, x tanh(softplus(x)).

The backward detaches tanh(softplus(x)) "to save memory", so the first derivative is right and the second is not.
"""

import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("unseen::mish", reference=True, shapes="x: *b -> output: *b")
def op(x: Tensor) -> Tensor:
    return (x * torch.tanh(torch.nn.functional.softplus(x))).contiguous()


@op.register_backward
def _(grad, x):
    t = torch.tanh(torch.nn.functional.softplus(x)).detach()
    return grad * (t + x * (1 - t * t) * torch.sigmoid(x))


def shown() -> tuple[Tensor, Tensor]:
    def second(function):
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    return second(op), second(torch.nn.functional.mish)
