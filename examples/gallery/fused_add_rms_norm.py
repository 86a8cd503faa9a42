"""Adds to the residual stream in place and normalises the sum, in one pass, with autograd through the mutation.

    residual ← residual + x,    out = residual · rstd · weight,    rstd = 1 / √(mean(residual²) + eps)

Dtypes: float64, float32, bfloat16, float16, of x and residual the same; sums are float64 for float64, else float32.
Training: the sum is kept for the backward where it lies. A write to it before the backward, such as by the next layer's
call, is an error there, as after any operation in place; give each layer its own residual then: `residual.clone()`.
Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4; fused as in vLLM and Liger-Kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rms_norm_triton import is_narrow, launch_grads
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, tl, triton_kernel

NAME = "gallery::fused_add_rms_norm"


def check_dtypes(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Raises before anything is written."""
    if x.dtype != residual.dtype:
        raise ValueError(f"{NAME}: 'x' and 'residual' must have one dtype, found {x.dtype} and {residual.dtype}")
    if not weight.is_floating_point():
        raise ValueError(f"{NAME}: 'weight' must be real, found {weight.dtype}")


@custom_op(NAME, mutates_args=("residual",), outputs=("out", "rstd"), hidden=("rstd",), reference=True)
def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Adds x to residual, and returns the sum normalised."""
    check_dtypes(x, residual, weight)
    residual.add_(x)
    wide = residual.contiguous().to(torch.promote_types(x.dtype, torch.float32))
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * weight).to(x.dtype), rstd


# One gradient for x and for the residual before the call, and that of weight. With g = out_grad · weight:
#     input_grad_i = residual_grad_i + rstd g_i - rstd³ residual_i / features · (Σ_j g_j residual_j + rstd_grad)
@custom_op("gallery::fused_add_rms_norm_grad", outputs=("input_grad", "weight_grad"), reference=True)
def fused_add_rms_norm_grad(
    out_grad: Tensor, residual_grad: Tensor, residual: Tensor, weight: Tensor, rstd: Tensor, rstd_grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of fused_add_rms_norm; residual is the sum."""
    wide = residual.contiguous().to(torch.promote_types(residual.dtype, torch.float32))
    g = out_grad * weight.to(wide.dtype)
    total = (g * wide).sum(-1, keepdim=True) + rstd_grad
    input_grad = residual_grad + rstd * g - wide * (rstd**3 * total / residual.shape[-1])
    weight_grad = (wide * rstd * out_grad).sum_to_size(weight.shape).to(weight.dtype)
    return input_grad.to(residual.dtype).contiguous(), weight_grad


fused_add_rms_norm.register_shapes("x: *b [d], residual: *b [d], weight: [d] -> out: *b [d], rstd: *b 1")
fused_add_rms_norm_grad.register_shapes(
    "out_grad: *b [d], residual_grad: *b [d], residual: *b [d], weight: [d], rstd: *b 1, rstd_grad: *b 1 "
    "-> input_grad: *b [d], weight_grad: [d]"
)
SOURCE = Path(__file__).with_suffix(".cpp")
add_rms_norm_cpp, add_rms_norm_grad_cpp = (cpp_kernel(SOURCE, name) for name in ("add_rms_norm", "add_rms_norm_grad"))


def apart(tensor: Tensor, written: Tensor) -> Tensor:
    """The tensor, or a copy of it where it lies in the memory that is written: no write is read again."""
    return tensor.clone() if tensor.untyped_storage().data_ptr() == written.untyped_storage().data_ptr() else tensor


@fused_add_rms_norm.register_kernel("cpu", name="cpp", layouts="contiguous")
def fused_add_rms_norm_cpp(x, residual, weight, eps) -> tuple[Tensor, Tensor]:
    """One pass for the sum and its statistic, one over the row in the cache for the output."""
    check_dtypes(x, residual, weight)
    # The weight is small: it is widened here, so that the C++ has one type per element of x and not one per pair.
    wide_weight = apart(weight, residual).to(torch.promote_types(x.dtype, torch.float32))
    return add_rms_norm_cpp(apart(x, residual), residual, wide_weight, eps)


@fused_add_rms_norm_grad.register_kernel("cpu", name="cpp", layouts="contiguous")
def _(out_grad, residual_grad, residual, weight, rstd, rstd_grad):
    small = (tensor.to(torch.promote_types(residual.dtype, torch.float32)) for tensor in (weight, rstd, rstd_grad))
    input_grad, weight_grad = add_rms_norm_grad_cpp(out_grad, residual_grad, residual, *small)
    return input_grad, weight_grad.to(weight.dtype)


fused_add_rms_norm_grad.register_kernel("cuda", launch_grads, name="triton", layouts="contiguous", when=is_narrow)


@triton_kernel
def add_rms_norm_row(x, residual, weight, out, rstd, features, eps, block: tl.constexpr) -> None:
    """One row, which stays in registers between the sum, the statistic and the output."""
    row = tl.program_id(0).to(tl.int64)  # row * features may pass 2^31
    column = tl.arange(0, block)
    inside = column < features
    place = row * features + column
    wide = rstd.dtype.element_ty
    total = tl.load(x + place, mask=inside, other=0).to(wide) + tl.load(residual + place, mask=inside, other=0).to(wide)
    kept = total.to(residual.dtype.element_ty)
    tl.store(residual + place, kept, mask=inside)
    values = kept.to(wide)  # the statistic is that of the sum as it is kept, which is what the backward reads
    scale = 1 / tl.sqrt(tl.sum(values * values) / features + eps)
    weights = tl.load(weight + column, mask=inside, other=0).to(wide)
    tl.store(out + place, (values * scale * weights).to(out.dtype.element_ty), mask=inside)
    tl.store(rstd + row, scale)


# A row of more features than that would not fit into the registers of one program.
@fused_add_rms_norm.register_kernel("cuda", name="triton", layouts="contiguous", when=lambda x: x.shape[-1] <= 65536)
def fused_add_rms_norm_triton(x, residual, weight, eps) -> tuple[Tensor, Tensor]:
    """One program per row."""
    check_dtypes(x, residual, weight)
    statistic = torch.promote_types(x.dtype, torch.float32)
    out, rstd = x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=statistic)
    if rows := rstd.numel():  # a grid of size 0 is an error
        block = 1 << max(0, x.shape[-1] - 1).bit_length()
        data = apart(x, residual), residual, apart(weight, residual), out, rstd
        add_rms_norm_row[(rows,)](*data, x.shape[-1], eps, block=block, num_warps=min(16, max(1, block // 512)))
    return out, rstd


# In a rule residual is its value after the call, and grad_residual the gradient of that; "residual" in the result is
# the gradient of its value before. rstd depends on the sum: in a second backward its gradient arrives as grad_rstd.
@fused_add_rms_norm.register_backward
def _(grad_out, grad_residual, grad_rstd, residual, weight, rstd):
    gradients = fused_add_rms_norm_grad(grad_out, grad_residual, residual, weight, rstd, grad_rstd)
    return {"x": gradients[0], "residual": gradients[0], "weight": gradients[1]}


@fused_add_rms_norm.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    for shape in ((4, 8), (2, 3, 19), (5,), (0, 8)):  # 19: no whole vectors
        yield Sample(make(*shape), make(*shape), make(shape[-1]), eps=1e-3)
    residual = make(4, 8, requires_grad=False)  # of a leaf that requires grad the mutation itself is refused
    yield Sample(make(8), residual, make(8)).raises(ValueError, match="'residual' must be")
    yield Sample(make(4, 8), residual, make(7)).raises(ValueError, match="'weight' must be")


@fused_add_rms_norm_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    for *rows, features in ((4, 8), (2, 3, 19)):
        x, rstd = (make(*rows, features) for _ in range(3)), make(*rows, 1, low=0.5, high=2.0)
        yield Sample(*x, make(features), rstd, make(*rows, 1))


if __name__ == "__main__":
    fused_add_rms_norm_grad.check()
    fused_add_rms_norm.check()
