"""A batch of sequences with the time first: (batch, time, features) to (time, batch, features).

The kernel clones and transposes, so its memory is still batch-major; the line of shapes promises contiguous results,
and compiled code computes addresses from that promise.
"""

import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("unseen::time_major", shapes="x: b t d -> output: t b d")
def op(x: Tensor) -> Tensor:
    return x.contiguous().clone().transpose(0, 1)


@op.register_backward
def _(grad):
    return grad.transpose(0, 1).contiguous()


def shown() -> tuple[Tensor, Tensor]:
    x = torch.randn(2, 3, 4)
    found, promised = op(x), op(x.to("meta"))
    return torch.tensor(found.stride()), torch.tensor(promised.stride())
