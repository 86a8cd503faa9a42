"""Rotary position embedding, and the same in place; the backward of a rotation is the inverse rotation.

    out[..., p, i]        = x[..., p, i] · cos[p, i] - x[..., p, i + half] · sin[p, i]
    out[..., p, i + half] = x[..., p, i + half] · cos[p, i] + x[..., p, i] · sin[p, i]        i < half = features / 2

Convention: half-split (GPT-NeoX, Llama), not interleaved: feature i is paired with feature i + half.
Dtypes: float64, float32, bfloat16, float16; the arithmetic is float64 for x in float64, else float32.
Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equation 34.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rope_triton import launch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def check_tables(cos: Tensor, sin: Tensor) -> None:
    """Raises if an angle would be rounded to an integer, or would be complex."""
    if not (cos.is_floating_point() and sin.is_floating_point()):
        raise ValueError(f"gallery::rope: 'cos' and 'sin' must be floating-point; found {cos.dtype} and {sin.dtype}")


def tables(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Both contiguous and in the dtype of the arithmetic, small beside x."""
    check_tables(cos, sin)
    wide = torch.promote_types(x.dtype, torch.float32)
    return cos.to(wide).contiguous(), sin.to(wide).contiguous()


@custom_op(
    "gallery::rope", outputs=("out",), reference=True, shapes="x: *b p (2 h), cos: p h, sin: p h -> out: *b p (2 h)"
)
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair of features by the angle of its position."""
    cos, sin = tables(x, cos, sin)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    low, high = wide.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype).contiguous()


# A table of angles is a constant here: its gradient needs x as it was before, which an op in place does not keep.
@custom_op(
    "gallery::rope_",
    mutates_args=("x",),
    non_differentiable=("cos", "sin"),
    shapes="x: *b p (2 h), cos: p h, sin: p h ->",
)
def rope_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates each pair of features by the angle of its position, in place."""
    x.copy_(rope(x, cos, sin))  # any device but the CPU: the kernel above, then a copy


rotate_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "rotate")


# Any strides but in the last dimension are read: (batch, positions, heads, features) transposed is not copied.
@rope.register_kernel("cpu", name="cpp", layouts={"x": "contiguous_rows"})
def rope_cpp(x, cos, sin) -> Tensor:
    """Rotates into a new tensor."""
    out = x.new_empty(x.shape)
    rotate_cpp(x, *tables(x, cos, sin), out)
    return out


@rope_.register_kernel("cpu", name="cpp", layouts={"x": "contiguous_rows"})
def rope_cpp_(x, cos, sin) -> None:
    """Rotates where x lies."""
    rotate_cpp(x, *tables(x, cos, sin), x)


@rope.register_kernel("cuda", name="triton", layouts="contiguous")
def rope_triton(x, cos, sin) -> Tensor:
    """Rotates into a new tensor, which is contiguous."""
    check_tables(cos, sin)
    out = x.new_empty(x.shape)
    if x.numel():  # a grid of size 0 is an error
        launch(x, cos, sin, out)
    return out


rope.register_fake(lambda x, cos, sin: x.new_empty(x.shape))  # contiguous, whatever the strides of x


# A rotation is orthogonal, so its adjoint is its inverse: the op itself, with the angle reversed. x is not saved.
@rope.register_grad("x")
def _(grad, cos, sin):
    return rope(grad, cos, -sin)


# Learned angles need x; it is saved only if they require a gradient.
@rope.register_grad("cos", "sin")
def _(grad, x, cos, meta):
    wide = torch.promote_types(x.dtype, torch.float32)
    low, high = x.to(wide).chunk(2, dim=-1)
    grad_low, grad_high = grad.to(wide).chunk(2, dim=-1)
    grad_cos = (grad_low * low + grad_high * high).sum_to_size(cos.shape)
    grad_sin = (grad_high * low - grad_low * high).sum_to_size(cos.shape)
    return grad_cos.to(cos.dtype), grad_sin.to(meta.sin.dtype)


# Linear in x and in each table: one term for each that has a tangent.
@rope.register_jvp
def _(tangent_x, tangent_cos, tangent_sin, x, cos, sin):
    zero = torch.zeros_like(cos)
    terms = ((tangent_x, cos, sin), (x, tangent_cos, zero), (x, zero, tangent_sin))
    first, *others = (rope(*term) for term in terms if all(part is not None for part in term))
    return sum(others, first)


# grad_x is the gradient of x after the call, the result that of x before. Linear, so the tangent turns with x.
@rope_.register_backward
def _(grad_x, cos, sin):
    return {"x": rope(grad_x, cos, -sin)}


@rope_.register_jvp
def _(tangent_x, cos, sin):
    return {"x": rope(tangent_x, cos, sin)}


@rope.register_samples
@rope_.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    for *leading, positions, half in ((2, 3, 4, 4), (5, 3), (2, 1, 19), (1, 1), (2, 0, 2)):  # 19: no whole vectors
        yield Sample(make(*leading, positions, 2 * half), make(positions, half), make(positions, half))


if __name__ == "__main__":
    rope.check()
    rope_.check()
