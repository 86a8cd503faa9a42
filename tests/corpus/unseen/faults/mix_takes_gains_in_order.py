"""Named channels, each times its gain.

The kernel takes the gains in the order of their dict, which need not be that of the channels.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::mix", reference=True)
def op(channels: dict[str, Tensor], gains: dict[str, float]) -> Tensor:
    return torch.stack([channels[name] * gains[name] for name in channels]).sum(0)


@op.register_kernel("cpu", name="in_order")
def _(channels, gains):
    return torch.stack([x * gain for x, gain in zip(channels.values(), gains.values(), strict=True)]).sum(0)


@op.register_samples
def _(make):
    yield Sample({"left": make(4), "right": make(4)}, {"left": 0.5, "right": 2.0})
    yield Sample({"a": make(2, 3)}, {"a": -1.0})


def shown() -> tuple[Tensor, Tensor]:
    channels = {"a": torch.zeros(1), "b": torch.ones(1)}
    return op(channels, {"b": 2.0, "a": 3.0}), torch.tensor([2.0])
