"""Functions that can be imported, and some that cannot, for ops with static arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_autograd import custom_op


def square(x):
    return x * x


def cube(x):
    return x * x * x


def local():
    def inner(x):
        return x

    return inner


class Cubes:
    """A class whose calls cube."""

    Inner = torch.nn.Softplus

    def __new__(cls, x):
        return x * x * x

    def method(self, x):
        return x


@custom_op("statics::apply", static=("function",), reference=True)
def apply(x: Tensor, function, times: int = 1) -> Tensor:
    for _ in range(times):
        x = function(x)
    return x.clone()
