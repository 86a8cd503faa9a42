"""Triton kernels that call one another, in Triton's interpreter."""

from __future__ import annotations

import torch

from custom_autograd.kernels import tl, triton_kernel
from gallery_values import interpreted


@triton_kernel
def double(values) -> tl.tensor:
    return values + values


@triton_kernel
def fourfold(x, out, size: tl.constexpr) -> None:
    place = tl.arange(0, size)
    tl.store(out + place, double(double(tl.load(x + place))))


@interpreted
def test_a_kernel_calls_another() -> None:
    x = torch.arange(4.0)
    out = torch.empty(4)
    fourfold[(1,)](x, out, size=4)

    assert torch.equal(4 * x, out)
