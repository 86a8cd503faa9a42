"""A soft clipper for audio, x / (1 + |x|).

A dictionary that was meant for debugging keeps the last input alive until the next call: in a model with a long
sequence, that is one activation too many for each process.
"""

import gc
import weakref

import torch
from torch import Tensor

from custom_autograd import custom_op

LAST: dict[str, Tensor] = {}


@custom_op("unseen::soft_clip", shapes="x: *b -> output: *b")
def op(x: Tensor) -> Tensor:
    LAST["x"] = x
    return (x / (1 + x.abs())).contiguous()


@op.register_backward
def _(grad, x):
    return grad / (1 + x.abs()).square()


def shown() -> tuple[Tensor, Tensor]:
    x = torch.randn(5)
    alive = weakref.ref(x)
    op(x)
    del x
    gc.collect()
    return torch.tensor(float(alive() is not None)), torch.tensor(0.0)
