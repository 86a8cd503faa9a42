"""A kernel can be registered for every device type that PyTorch has tensors of; fakes serve "meta"."""

import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op

DEVICE_TYPES = (
    "cpu", "cuda", "fpga", "hip", "hpu", "ipu", "lazy", "maia", "mps", "mtia", "privateuseone", "ve", "vulkan", "xla",
    "xpu",
)  # fmt: skip


def op_of(device_types):
    @custom_op("device_types::double", device_types=device_types, replace=True)
    def double(x: Tensor) -> Tensor:
        return x * 2

    return double


def has_kernel(device_type):
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("device_types::double", key)


@each("device_type", DEVICE_TYPES)
def test_a_kernel_of_a_device_type_stands_at_its_dispatch_key(device_type):
    op = op_of("cpu" if device_type != "cpu" else "cuda")
    assert not has_kernel(device_type)

    op.register_kernel(device_type)(lambda x: x + x)

    assert has_kernel(device_type)
    assert device_type in op.kernels


@each("device_type", DEVICE_TYPES)
def test_an_op_is_declared_for_a_device_type(device_type):
    op = op_of(device_type)

    assert has_kernel(device_type)
    assert [device_type] == list(op.kernels)
