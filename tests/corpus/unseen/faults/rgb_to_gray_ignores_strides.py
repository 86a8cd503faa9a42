"""The luma of an image with three channels.

The kernel indexes the memory as if every image were contiguous, and nothing makes it so.
Images that a decoder returns are permuted views of (height, width, 3), which the author had made contiguous by hand.
"""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("unseen::rgb_to_gray", reference=True)
def op(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(0)
    return (0.299 * red + 0.587 * green + 0.114 * blue).contiguous()


op.register_kernel(
    "cpu",
    cpp_kernel(Path(__file__).with_suffix(".cpp"), "rgb_to_gray"),
    name="cpp",
    when=lambda image: image.is_floating_point() and image.dim() == 3,
)


@op.register_samples
def _(make):
    yield Sample(make(3, 4, 5))
    yield Sample(make(3, 8, 8))


def shown() -> tuple[Tensor, Tensor]:
    image = torch.arange(60.0).reshape(4, 5, 3).permute(2, 0, 1)
    return op(image), op(image.contiguous())
