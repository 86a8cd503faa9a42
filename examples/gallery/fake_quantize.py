"""Fake quantization with a learnable scale: rounds to what an integer can represent, and lets gradients pass through.

    q = round(clamp(x / scale, quant_min - zero_point, quant_max - zero_point)),    out = q · scale

Straight through: the backward takes the derivative of round to be 1 (it is 0, or there is none), all else as it is.
Where x / scale is clamped, x gets no gradient; the scale gets q - x / scale of each element, or q where it is clamped.
Ties go to the even integer. torch.fake_quantize_per_tensor_affine rounds before it clamps, and so lets gradients pass
for another half step. LSQ divides the scale's gradient by √(elements · quant_max): scale the gradient of `scale`.
Dtypes: x float64, float32, bfloat16, float16; scale positive, any float; zero_point any integer.
Finite differences would see a staircase: `surrogate=` lets checks compare with the autograd of the reference instead.
Source: Esser et al. 2020, "Learned Step Size Quantization", equations 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def parameters(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int, axis: int | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Scale, low, high: (channels,), and how many neighbours in x share them; raises where a dtype is wrong."""
    if quant_min >= quant_max:
        raise ValueError(f"fake_quantize: 'quant_min' must be less than 'quant_max'; found {quant_min}, {quant_max}")
    for name, tensor, kind in (("scale", scale, "a floating-point"), ("zero_point", zero_point, "an integer")):
        if tensor is not None and (tensor.is_complex() or tensor.is_floating_point() != (name == "scale")):
            raise TypeError(f"fake_quantize: '{name}' must have {kind} dtype, not {tensor.dtype}")
    wide = scale.reshape(-1).to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    zero = torch.zeros_like(wide) if zero_point is None else zero_point.reshape(-1).to(wide.dtype)
    inner = x.numel() if axis is None else prod(x.shape[axis % x.dim() + 1 :])
    return wide, quant_min - zero, quant_max - zero, inner


def along(channels: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """(channels,) as a tensor that broadcasts against x."""
    return channels.reshape(()) if axis is None else channels.view(-1, *(1,) * (x.dim() - 1 - axis % x.dim()))


def rounded(x, scale, low, high, axis) -> tuple[Tensor, Tensor, Tensor]:
    """The quotient x / scale, clamped to [low, high], and rounded with the derivative of what was clamped."""
    steps = x.to(scale.dtype) / along(scale, x, axis)
    clamped = steps.clamp(along(low, x, axis), along(high, x, axis))
    return steps, clamped, clamped + (clamped.round() - clamped).detach()


@custom_op("gallery::fake_quantize", outputs=("out",))
def fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, quant_min: int = -128, quant_max: int = 127,
    axis: int | None = None,
) -> Tensor:  # fmt: skip
    """Rounds x to the nearest representable multiple of scale."""
    wide, low, high, _ = parameters(x, scale, zero_point, quant_min, quant_max, axis)
    return (rounded(x, wide, low, high, axis)[2] * along(wide, x, axis)).to(x.dtype).contiguous()


@custom_op("gallery::fake_quantize_grad", outputs=("x_grad", "scale_grad"))
def fake_quantize_grad(
    out_grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int,
    axis: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The straight-through gradients of x and scale, from one pass over x; itself straight through."""
    wide, low, high, _ = parameters(x, scale, zero_point, quant_min, quant_max, axis)
    steps, clamped, q = rounded(x, wide, low, high, axis)
    inside = clamped == steps
    by_channel = torch.where(inside, q - steps, q) * out_grad
    by_channel = by_channel.reshape(1, -1) if axis is None else by_channel.movedim(axis, 0).unsqueeze(-1).flatten(1)
    x_grad = torch.where(inside, out_grad, 0).contiguous()
    return x_grad, by_channel.sum(1).reshape(scale.shape).to(scale.dtype).contiguous()


for op in (fake_quantize, fake_quantize_grad):
    op.register_reference(op.__wrapped__, surrogate="straight through: the derivative of round is taken to be 1")


def dims_of(axis, scale, zero_point) -> tuple[str, str, str]:
    """Of x, scale and zero_point: one element, or one per channel; `axis` counts from the front or from the back."""
    if axis is None:
        return "*b", "[1]" if scale else "", "1" if zero_point else ""
    others = " ".join(f"a{i}" for i in range(axis if axis >= 0 else -axis - 1))
    return f"{others} c *b" if axis >= 0 else f"*b c {others}", "c", "c"


@fake_quantize.register_shapes
def _(axis, scale, zero_point):
    x, scale, zero_point = dims_of(axis, scale, zero_point)
    return f"x: {x}, scale: {scale}, zero_point?: {zero_point} -> out: {x}"


@fake_quantize_grad.register_shapes(dtypes={"x_grad": "x", "scale_grad": "scale"})
def _(axis, scale, zero_point):
    x, scale, zero_point = dims_of(axis, scale, zero_point)
    return f"out_grad: {x}, x: {x}, scale: {scale}, zero_point?: {zero_point} -> x_grad: {x}, scale_grad: {scale}"


SOURCE = Path(__file__).with_suffix(".cpp")
fake_quantize_cpp = cpp_kernel(SOURCE, "fake_quantize")
fake_quantize_grad_cpp = cpp_kernel(SOURCE, "fake_quantize_grad")


@fake_quantize.register_kernel("cpu", name="cpp", layouts={"x": "contiguous"})
def _(x, scale, zero_point, quant_min, quant_max, axis):
    """C++: one pass."""
    return fake_quantize_cpp(x, *parameters(x, scale, zero_point, quant_min, quant_max, axis))


@fake_quantize_grad.register_kernel("cpu", name="cpp", layouts={"x": "contiguous", "out_grad": "contiguous"})
def _(out_grad, x, scale, zero_point, quant_min, quant_max, axis):
    """C++: one pass for both gradients; the shares of fixed stretches of x are summed here, in their order."""
    x_grad, shares = fake_quantize_grad_cpp(out_grad, x, *parameters(x, scale, zero_point, quant_min, quant_max, axis))
    return x_grad, shares.sum((0, 2)).reshape(scale.shape).to(scale.dtype)


@fake_quantize.register_backward
def _(grad, x, scale, zero_point, quant_min, quant_max, axis):
    grads = fake_quantize_grad(grad, x, scale, zero_point, quant_min, quant_max, axis)
    return dict(zip(("x", "scale"), grads, strict=True))


@fake_quantize.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    scale, zero_point = make(1, low=0.1, high=0.2), torch.tensor([3, 8, 0], device=make(1).device)
    yield Sample(make(4, 5), scale.reshape(()), quant_min=-4, quant_max=3)
    yield Sample(make(2, 3, 5), make(3, low=0.1, high=0.2), zero_point, 0, 15, 1)
    yield Sample(make(4, 3), make(3, low=0.1, high=0.2), None, -8, 7, axis=-1)
    yield Sample(make(0, 3), scale)
    yield Sample(make(3), scale, quant_min=3, quant_max=3).raises(ValueError, match="found 3, 3")
    yield Sample(make(3), scale.expand(2)).raises(ValueError, match=r"'scale' must be \(1\)")
    yield Sample(make(3), scale, scale).raises(TypeError, match="'zero_point' must have an integer dtype")


@fake_quantize_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(4, 3), make(4, 3), make(3, low=1, high=2), None, -2, 1, 1)
    yield Sample(make(3), make(3), make(3, low=1, high=2), None, -2, 1, 0)


if __name__ == "__main__":
    fake_quantize_grad.check()
    fake_quantize.check()
