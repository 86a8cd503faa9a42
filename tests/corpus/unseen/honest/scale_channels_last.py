"""A gain for each channel of images that must be in PyTorch's channels-last layout; others are refused."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_channels_last(images: Tensor) -> None:
    if images.dim() != 4 or not images.is_contiguous(memory_format=torch.channels_last):
        raise ValueError(f"'images' must be channels-last, found strides {tuple(images.stride())}")


@custom_op("unseen::scale_channels_last")
def op(images: Tensor, gain: Tensor) -> Tensor:
    require_channels_last(images)
    return (images * gain[:, None, None]).contiguous(memory_format=torch.channels_last)


@op.register_fake
def _(images, gain):
    require_channels_last(images)
    return torch.empty_like(images, memory_format=torch.channels_last)


@op.register_backward
def _(grad, images, gain):
    return {"images": lambda: grad * gain[:, None, None], "gain": lambda: (grad * images).sum((0, 2, 3))}


def channels_last(make, *shape: int) -> Tensor:
    return make(*shape, requires_grad=False).to(memory_format=torch.channels_last).requires_grad_()


@op.register_samples
def _(make):
    yield Sample(channels_last(make, 2, 3, 4, 5), make(3))
    yield Sample(channels_last(make, 1, 2, 3, 3), make(2))
    yield Sample(make(2, 3, 4, 5), make(3)).raises(ValueError, match="must be channels-last")
