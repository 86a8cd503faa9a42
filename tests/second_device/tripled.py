"""An op that writes down the devices of its calls, for the processes of test_command_line.py and test_pytest.py."""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from second_device import backend

if not hasattr(torch, "second"):
    backend.install()


@custom_op("second_device::tripled", reference=True)
def tripled(x: Tensor) -> Tensor:
    with Path("devices").open("a") as file:
        print(x.device.type, file=file)
    return 3 * x


@tripled.register_backward
def _(grad):
    return 3 * grad


@tripled.register_samples
def _(make):
    yield Sample(make(3, 4))
    yield Sample(make(2, 3), make(3)).raises(TypeError)
