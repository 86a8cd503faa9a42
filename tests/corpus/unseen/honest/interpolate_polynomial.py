"""The coefficients of the polynomial through given points, from an ill-conditioned Vandermonde system.

With eight nodes in [0, 1] the condition number is about 1e7, so float32 results have few correct digits.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_precision(values: Tensor) -> None:
    if values.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"'values' must be float32 or float64, found {values.dtype}")


@custom_op("unseen::interpolate_polynomial", non_differentiable=("nodes",))
def op(nodes: Tensor, values: Tensor, transpose: bool = False) -> Tensor:
    require_precision(values)
    matrix = torch.linalg.vander(nodes)
    return torch.linalg.solve(matrix.mT if transpose else matrix, values)


op.register_autocast("cpu", "keep")


@op.register_fake
def _(nodes, values, transpose=False):
    require_precision(values)
    return values.new_empty(values.shape)


@op.register_backward
def _(grad, nodes, transpose):
    return {"values": op(nodes, grad, not transpose)}


@op.register_samples
def _(make):
    if make.dtype in (torch.float32, torch.float64):
        yield Sample(torch.linspace(0, 1, 8, dtype=make.dtype, device=make.device), make(8))
        yield Sample(torch.linspace(-1, 1, 4, dtype=make.dtype, device=make.device), make(4))
