"""The logarithm of the determinant of symmetric positive definite matrices, by Cholesky.

The matrix is symmetrized first, so the gradient is right for changes that are not symmetric.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_precision(matrix: Tensor) -> None:
    if matrix.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"'matrix' must be float32 or float64, found {matrix.dtype}")


@custom_op("unseen::spd_log_det")
def op(matrix: Tensor) -> Tensor:
    require_precision(matrix)
    factor = torch.linalg.cholesky((matrix + matrix.mT) / 2)
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).contiguous()


op.register_autocast("cpu", "keep")


@op.register_fake
def _(matrix):
    require_precision(matrix)
    return matrix.new_empty(matrix.shape[:-2])


@op.register_backward
def _(grad, matrix):
    return grad[..., None, None] * torch.linalg.inv((matrix + matrix.mT) / 2)


def positive_definite(make, *shape: int) -> Tensor:
    half = make(*shape, shape[-1], requires_grad=False)
    eye = torch.eye(shape[-1], dtype=half.dtype, device=half.device)
    return (half @ half.mT + eye).requires_grad_()


@op.register_samples
def _(make):
    if make.dtype in (torch.float32, torch.float64):
        yield Sample(positive_definite(make, 3))
        yield Sample(positive_definite(make, 2, 4))
    yield Sample(make(2, 2, dtype=torch.bfloat16)).raises(TypeError, match="float32 or float64")
