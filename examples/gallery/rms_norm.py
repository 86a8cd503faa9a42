"""Root-mean-square normalisation over the last dimension, with a hidden statistic and a backward kernel of its own.

    out = x · rstd · weight,    rstd = 1 / √(mean(x²) + eps)

Shapes: x: (..., features); weight: (features,); out like x; rstd: (..., 1).
Dtypes: float64, float32, bfloat16, float16. rstd is float64 for float64, else float32; sums are kept in its dtype.
Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rms_norm_triton import is_narrow, launch, rms_norm_grad_triton
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, cuda_kernel


def check_weight(op: str, x: Tensor, weight: Tensor) -> None:
    """One real element per feature: nothing is broadcast, and no imaginary part is dropped."""
    if x.dim() == 0 or weight.shape != x.shape[-1:] or not weight.is_floating_point():
        found = f"{weight.dtype} {tuple(weight.shape)} for 'x' {tuple(x.shape)}"
        raise ValueError(f"{op}: 'weight' must be floating-point (features,) for 'x' (..., features); found {found}")


@custom_op("gallery::rms_norm", outputs=("out", "rstd"), hidden=("rstd",), reference=True)
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Root-mean-square normalisation over the last dimension."""
    check_weight("gallery::rms_norm", x, weight)
    wide = x.contiguous().to(torch.promote_types(x.dtype, torch.float32))
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * weight).to(x.dtype), rstd


# The gradients pass many times over x in PyTorch operations and once in C++. As an op of its own the C++ stays
# differentiable: nothing else is registered for it, so its derivatives come from this reference.
#
# With g = out_grad · weight and drstd/dx_i = -rstd³ x_i / features:
#     x_grad_i = rstd g_i  -  rstd³ x_i / features · (Σ_j g_j x_j + rstd_grad)
@custom_op("gallery::rms_norm_grad", outputs=("x_grad", "weight_grad"), reference=True)
def rms_norm_grad(
    out_grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, rstd_grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm."""
    check_weight("gallery::rms_norm_grad", x, weight)
    wide = x.contiguous().to(torch.promote_types(x.dtype, torch.float32))
    g = out_grad.contiguous() * weight.to(wide.dtype)
    total = (g * wide).sum(-1, keepdim=True) + rstd_grad
    weight_grad = (wide * rstd * out_grad).sum_to_size(weight.shape).to(weight.dtype)
    return (rstd * g - wide * (rstd**3 * total / x.shape[-1])).to(x.dtype), weight_grad


rms_norm.register_shapes("x: *b [d], weight: [d] -> out: *b [d], rstd: *b 1", dtypes={"rstd": "wide"})
rms_norm_grad.register_shapes(
    "out_grad: *b [d], x: *b [d], weight: [d], rstd: *b 1, rstd_grad: *b 1 -> x_grad: *b [d], weight_grad: [d]"
)
SOURCE = Path(__file__).with_suffix(".cpp")
forward_cpp, backward_cpp = cpp_kernel(SOURCE, "rms_norm"), cpp_kernel(SOURCE, "rms_norm_grad")


@rms_norm.register_kernel("cpu", name="cpp", layouts="contiguous")
def rms_norm_cpp(x, weight, eps) -> tuple[Tensor, Tensor]:
    """One pass for the statistic, one for the output, rows in parallel."""
    check_weight("gallery::rms_norm", x, weight)
    # The weight is small: it is widened here, so that the C++ has one type per element of x and not one per pair.
    return forward_cpp(x, weight.to(torch.promote_types(x.dtype, torch.float32)), eps)


@rms_norm_grad.register_kernel("cpu", name="cpp", layouts="contiguous")
def rms_norm_grad_cpp(out_grad, x, weight, rstd, rstd_grad) -> tuple[Tensor, Tensor]:
    """One pass for the sum over j, one for both gradients."""
    check_weight("gallery::rms_norm_grad", x, weight)
    small = (tensor.to(torch.promote_types(x.dtype, torch.float32)) for tensor in (weight, rstd, rstd_grad))
    x_grad, weight_grad = backward_cpp(out_grad, x, *small)
    return x_grad, weight_grad.to(weight.dtype)


rms_norm_grad.register_kernel("cuda", rms_norm_grad_triton, name="triton", layouts="contiguous", when=is_narrow)


# A row of more features would not fit into the registers of one program.
@rms_norm.register_kernel("cuda", name="triton", layouts="contiguous", when=lambda x: x.shape[-1] <= 65536)
def rms_norm_triton(x, weight, eps) -> tuple[Tensor, Tensor]:
    """One program per row, which stays in registers between the statistic and the output."""
    out, rstd = rms_norm_fake(x, weight, eps)
    launch(x, weight, eps, out, rstd)
    return out, rstd


rms_norm_cu = cuda_kernel(SOURCE.with_suffix(".cu"), "rms_norm")


# Runs where Triton is not installed, and in `with rms_norm.use_kernel("cuda_cpp")`.
@rms_norm.register_kernel("cuda", name="cuda_cpp", priority=-1, layouts={"x": "contiguous"})
def rms_norm_cuda_cpp(x, weight, eps) -> tuple[Tensor, Tensor]:
    """CUDA C++: one block per row, 16 bytes at a time."""
    check_weight("gallery::rms_norm", x, weight)
    return rms_norm_cu(x, weight.to(torch.promote_types(x.dtype, torch.float32)).contiguous(), eps)


@rms_norm.register_fake
def rms_norm_fake(x, weight, eps) -> tuple[Tensor, Tensor]:
    """Both outputs are contiguous, whatever the strides of x; of weight there is one element per feature."""
    check_weight("gallery::rms_norm", x, weight)
    statistic = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=statistic)


# rstd is saved, and depends on x: in a second backward its gradient arrives as grad_rstd. In a first one it is zero.
@rms_norm.register_backward
def _(grad_out, grad_rstd, x, weight, rstd):
    return rms_norm_grad(grad_out, x, weight, rstd, grad_rstd)


@rms_norm.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    for *rows, features in ((4, 8), (2, 3, 19), (5,), (0, 8)):  # 19: no whole vectors; one row; none
        yield Sample(make(*rows, features), make(features), eps=1e-3)
    yield Sample(make(3, 1), make(1), eps=0.1)  # one feature: eps keeps the gradient away from zero
    yield Sample(make(4, 8), make(7)).raises(match="'weight' must")


@rms_norm_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    for *rows, features in ((4, 8), (2, 3, 19), (0, 8)):
        x, out_grad = make(*rows, features), make(*rows, features)
        yield Sample(out_grad, x, make(features), make(*rows, 1, low=0.5, high=2.0), make(*rows, 1))


if __name__ == "__main__":
    rms_norm_grad.check()
    rms_norm.check()
