"""The GELU, exact or in one of its two approximations.

The backward handles "tanh" and uses the exact derivative for everything else.
The mode "sigmoid" was added to the forward a year later.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::gelu", reference=True)
def op(x: Tensor, approximate: Literal["none", "tanh", "sigmoid"] = "none") -> Tensor:
    if approximate == "sigmoid":
        return x * torch.sigmoid(1.702 * x)
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


@op.register_backward
def _(grad, x, approximate):
    if approximate == "tanh":
        c = math.sqrt(2 / math.pi)
        t = torch.tanh(c * (x + 0.044715 * x**3))
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x))
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


@op.register_samples
def _(make):
    yield Sample(make(4, 5))
    yield Sample(make(6), approximate="tanh")


def shown() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, 7, requires_grad=True)
    (found,) = torch.autograd.grad(op(x, "sigmoid").sum(), x)
    (right,) = torch.autograd.grad((x * torch.sigmoid(1.702 * x)).sum(), x)
    return found, right
