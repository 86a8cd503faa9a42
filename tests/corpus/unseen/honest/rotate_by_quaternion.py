"""Points rotated by unit quaternions (w, x, y, z): a formula that is a rotation on the unit sphere only."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::rotate_by_quaternion", reference=True)
def op(quaternion: Tensor, points: Tensor) -> Tensor:
    axis = quaternion[..., 1:].expand_as(points)
    turned = 2 * torch.linalg.cross(axis, points)
    return (points + quaternion[..., :1] * turned + torch.linalg.cross(axis, turned)).contiguous()


def unit(make, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(make(*shape, 4, requires_grad=False), dim=-1).requires_grad_()


@op.register_samples
def _(make):
    yield Sample(unit(make, 5), make(5, 3))
    yield Sample(unit(make), make(4, 3))
