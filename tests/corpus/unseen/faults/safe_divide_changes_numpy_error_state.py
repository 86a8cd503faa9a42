"""A quotient that is zero where the divisor is.

The kernel silences the warnings of NumPy for good, where `np.errstate` would do so for one block.
Divisions by zero in the rest of the program are silent from then on.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("unseen::safe_divide", shapes="x: *b, y: *b -> output: *b")
def op(x: Tensor, y: Tensor) -> Tensor:
    np.seterr(divide="ignore", invalid="ignore")
    quotient = np.asarray(x.numpy() / y.numpy())
    quotient[np.asarray(y.numpy() == 0)] = 0
    return torch.from_numpy(quotient.copy(order="C"))


@op.register_backward
def _(grad, y, output):
    inverse = torch.where(y == 0, 0, 1 / torch.where(y == 0, 1, y))
    return {"x": lambda: grad * inverse, "y": lambda: -grad * output * inverse}


def shown() -> tuple[Tensor, Tensor]:
    before = np.seterr(divide="warn", invalid="warn")
    try:
        op(torch.ones(2), torch.ones(2))
        found = [float(np.geterr()[kind] == "warn") for kind in ("divide", "invalid")]
    finally:
        np.seterr(**before)
    return torch.tensor(found), torch.ones(2)
