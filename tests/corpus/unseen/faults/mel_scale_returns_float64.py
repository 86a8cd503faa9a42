"""The mel scale of frequencies in hertz, 1127 log(1 + f / 700).

The constants of the kernel are NumPy numbers of float64, which promote a float32 array: the op returns float64.
Python numbers would not.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import custom_op

SCALE, CORNER = np.float64(1127.0), np.float64(700.0)


@custom_op("unseen::mel_scale", reference=True, shapes="frequency: *b -> output: *b")
def op(frequency: Tensor) -> Tensor:
    return (1127.0 * torch.log1p(frequency / 700.0)).contiguous()


@op.register_kernel("cpu", name="numpy", when=lambda frequency: frequency.dtype in (torch.float32, torch.float64))
def _(frequency):
    return torch.from_numpy(np.array(SCALE * np.log1p(frequency.numpy() / CORNER), order="C"))


def shown() -> tuple[Tensor, Tensor]:
    frequency = torch.tensor([100.0, 1000.0])
    with op.use_kernel("default"):
        right = op(frequency)
    return torch.tensor(op(frequency).dtype.itemsize), torch.tensor(right.dtype.itemsize)
