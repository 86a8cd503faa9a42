"""Autocast on two device types at once, each with its own policy."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import custom_op

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@custom_op("autocast_cuda::scaled", reference=True)
def scaled(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x @ weight) * scale.to(x.device)


scaled.register_autocast("cuda", "lower", output="input")
scaled.register_autocast("cpu", torch.float16)


def tensors():
    return torch.rand(4, 3, device="cuda"), torch.rand(3, 5, device="cuda"), torch.rand(())


def test_tensors_are_cast_as_the_policy_of_their_device_says():
    x, weight, scale = tensors()
    with torch.autocast("cuda", torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
        found = scaled(x, weight, scale)
    expected = (x.bfloat16() @ weight.bfloat16()) * scale.half().to("cuda")

    assert_close(found, expected.float(), rtol=0, atol=0)


def test_a_device_type_without_autocast_is_left_alone():
    x, weight, scale = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        found = scaled(x, weight, scale)

    assert_close(found, (x @ weight) * scale.half().to("cuda"), rtol=1e-5, atol=1e-5)


def test_gradients_go_back_through_both_casts():
    inputs = [tensor.requires_grad_() for tensor in tensors()]
    with torch.autocast("cuda", torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(scaled(*inputs).sum(), inputs)

    assert [(torch.float32, "cuda"), (torch.float32, "cuda"), (torch.float32, "cpu")] == [
        (gradient.dtype, gradient.device.type) for gradient in found
    ]
