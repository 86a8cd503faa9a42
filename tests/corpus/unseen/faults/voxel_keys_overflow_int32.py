"""One integer for each voxel of a grid, from its three coordinates.

The kernel computes in int32, the dtype of the coordinates in the file format, and overflows beyond 2^31 voxels: far
voxels share keys with near ones.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::voxel_keys", reference=True)
def op(coordinates: Tensor, height: int, depth: int) -> Tensor:
    x, y, z = coordinates.to(torch.int64).unbind(-1)
    return ((x * height + y) * depth + z).contiguous()


@op.register_kernel("cpu", name="numpy", when=lambda coordinates: not coordinates.is_floating_point())
def _(coordinates, height, depth):
    x, y, z = np.moveaxis(coordinates.numpy().astype(np.int32), -1, 0)
    keys = (x * np.int32(height) + y) * np.int32(depth) + z
    return torch.from_numpy(np.asarray(keys).astype(np.int64, order="C"))


@op.register_samples
def _(make):
    yield Sample(make(6, 3, dtype=torch.int64, low=0, high=8), 8, 8)
    yield Sample(make(2, 4, 3, dtype=torch.int64, low=0, high=5), 5, 16)


def shown() -> tuple[Tensor, Tensor]:
    far = torch.tensor([[1999, 5, 7]])
    with op.use_kernel("default"):
        right = op(far, 2000, 2000)
    return op(far, 2000, 2000), right
