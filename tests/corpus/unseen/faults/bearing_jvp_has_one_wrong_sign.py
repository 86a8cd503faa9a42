"""The bearing of a landmark, atan2(y, x), as in a Kalman filter.

The tangent of `x` enters with the wrong sign; the backward is right.
The filter was only tested with robots that move along `y`.
"""

import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("unseen::bearing", reference=True, shapes="y: *b, x: *b -> output: *b")
def op(y: Tensor, x: Tensor) -> Tensor:
    return torch.atan2(y, x).contiguous()


@op.register_backward
def _(grad, y, x):
    scaled = grad / (x * x + y * y)
    return {"y": scaled * x, "x": -scaled * y}


@op.register_jvp
def _(tangent_y, tangent_x, y, x):
    tangent = torch.zeros_like(y)
    if tangent_y is not None:
        tangent = tangent + x * tangent_y
    if tangent_x is not None:
        tangent = tangent + y * tangent_x
    return tangent / (x * x + y * y)


def shown() -> tuple[Tensor, Tensor]:
    y, x, direction = torch.ones(3), torch.ones(3), torch.ones(3)
    found = torch.func.jvp(lambda x: op(y, x), (x,), (direction,))[1]
    return found, torch.func.jvp(lambda x: torch.atan2(y, x), (x,), (direction,))[1]
