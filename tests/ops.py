"""The table: one op per feature, each with the same computation in plain PyTorch. Files in transforms/ draw from it.

Kernels are opaque (NumPy) wherever the point is that nothing but the rules can differentiate them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_autograd import CustomOp, custom_op

Inputs = Callable[[Callable[..., Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Row:
    """One op.

    Attributes:
        op: the op, as a function of its floating-point tensors only, returning a tuple of tensors.
        reference: the same in plain PyTorch operations.
        shapes: of the tensors, all float64.
        custom_op: the op itself.
        has_second_order: the backward may be differentiated.
        mutates: the op writes to its first tensor, which `op` therefore copies.
        is_saved: `torch.export.save` can write what `op` passes.
    """

    op: Callable[..., tuple[Tensor, ...]]
    reference: Callable[..., tuple[Tensor, ...]]
    shapes: tuple[tuple[int, ...], ...]
    custom_op: CustomOp[..., Any]
    has_second_order: bool = True
    mutates: bool = False
    is_saved: bool = True

    def inputs(self, *, requires_grad: bool = False) -> tuple[Tensor, ...]:
        """Reproducible tensors, away from zero."""
        generator = torch.Generator().manual_seed(3)
        tensors = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5 for shape in self.shapes]
        return tuple(tensor.requires_grad_(requires_grad) for tensor in tensors)

    def loss(self, f: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
        """A number with derivatives of every order."""
        return lambda *tensors: sum((result**3).sum() for result in f(*tensors))


def of_numpy(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


@custom_op("table::cube")
def cube(x: Tensor) -> Tensor:
    return of_numpy(x.numpy() ** 3)


@cube.register_fake
def _(x):
    return torch.empty_like(x)


@cube.register_backward
def _(grad, x):
    return 3 * grad * x * x


@custom_op("table::multiply")
def multiply(x: Tensor, y: Tensor) -> Tensor:
    return of_numpy(x.numpy() * y.numpy())


@multiply.register_fake
def _(x, y):
    return torch.empty_like(x)


@multiply.register_grad("x")
def _(grad, y):
    return grad * y


@multiply.register_grad("y")
def _(grad, x):
    return grad * x


@custom_op("table::normalize", outputs=("out", "scale"), hidden=("scale",))
def normalize(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    scale = 1 / np.sqrt((x.numpy() ** 2).mean(-1, keepdims=True) + eps)
    return of_numpy(x.numpy() * scale * weight.numpy()), of_numpy(scale)


@normalize.register_fake
def _(x, weight, *, eps=1e-6):
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1))


@normalize.register_backward
def _(grad_out, grad_scale, x, weight, scale, needs):
    weighted = grad_out * weight
    share = (weighted * x).sum(-1, keepdim=True) + grad_scale
    return {
        "x": lambda: weighted * scale - share * scale**3 * x / x.shape[-1],
        "weight": (grad_out * x * scale).sum(0) if needs.weight else None,
    }


def normalize_reference(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6) * weight,)


@custom_op("table::silent_hidden", outputs=("out", "square"), hidden=("square",), reference=True)
def silent_hidden(x: Tensor) -> tuple[Tensor, Tensor]:
    square = x * x
    return square * x, square


@silent_hidden.register_backward
def _(grad_out, square):
    return 3 * grad_out * square


@custom_op("table::referenced", reference=True)
def referenced(x: Tensor, y: Tensor, power: int = 2) -> Tensor:
    return torch.sin(x) * y**power


@referenced.register_kernel("cpu")
def _(x, y, power):
    return of_numpy(np.sin(x.numpy()) * y.numpy() ** power)


@custom_op("table::weighted")
def weighted(xs: Sequence[Tensor], power: int = 2, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    total = sum(x.numpy() ** power for x in xs) * weight.numpy()
    return of_numpy(total if bias is None else total + bias.numpy())


@weighted.register_fake
def _(xs, power=2, *, weight, bias=None):
    return torch.empty_like(xs[0])


@weighted.register_backward
def _(grad, xs, power, weight, needs):
    return {
        "xs": [
            grad * weight * power * x ** (power - 1) if needed else None for x, needed in zip(xs, needs.xs, strict=True)
        ],
        "weight": lambda: grad * sum(x**power for x in xs),
        "bias": lambda: grad * 1,
    }


@custom_op("table::pieces")
def pieces(x: Tensor, sizes: Sequence[int]) -> tuple[list[Tensor], int]:
    return [of_numpy(part**2) for part in np.split(x.numpy(), np.cumsum(sizes)[:-1])], len(sizes)


@pieces.register_fake
def _(x, sizes):
    return [torch.empty_like(part) for part in torch.split(x, list(sizes))], len(sizes)


@pieces.register_backward
def _(grad_output_0, x):
    return 2 * x * torch.cat(grad_output_0)


@custom_op("table::some")
def some(xs: Sequence[Tensor | None]) -> Tensor:
    return of_numpy(sum(x.numpy() ** 2 for x in xs if x is not None))


@some.register_fake
def _(xs):
    return torch.empty_like(next(x for x in xs if x is not None))


@some.register_backward
def _(grad, xs, needs):
    return {"xs": [2 * x * grad if needed else None for x, needed in zip(xs, needs.xs, strict=True)]}


@custom_op("table::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: Tensor) -> None:
    x.numpy()[...] *= factor.numpy()


@scale_.register_backward
def _(grad, x, factor):
    return {"x": grad * factor, "factor": grad * x / factor}


@custom_op("table::with_jvp")
def with_jvp(x: Tensor, y: Tensor) -> Tensor:
    return of_numpy(np.exp(x.numpy()) * y.numpy())


@with_jvp.register_fake
def _(x, y):
    return torch.empty_like(x)


@with_jvp.register_backward
def _(grad, output, x):
    return grad * output, grad * torch.exp(x)


@with_jvp.register_jvp
def _(tangent_x, tangent_y, x, y):
    total = torch.zeros_like(x)
    if tangent_x is not None:
        total = total + tangent_x * torch.exp(x) * y
    return total if tangent_y is None else total + tangent_y * torch.exp(x)


@custom_op("table::drop_in")
def drop_in(x: Tensor, y: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    return of_numpy(x.numpy() * y.numpy() * scale), of_numpy(x.numpy() ** 2)


@drop_in.register_fake
def _(x, y, scale=2.0):
    return torch.empty_like(x), torch.empty_like(x)


def _save(ctx, inputs, output):
    x, y, ctx.scale = inputs
    ctx.save_for_backward(x, y)


def _backward(ctx, grad_product, grad_square):
    x, y = ctx.saved_tensors
    return grad_product * y * ctx.scale + 2 * grad_square * x, grad_product * x * ctx.scale, None


drop_in.register_autograd(_backward, setup_context=_save)


class Mode(enum.Enum):
    """How `choose` computes."""

    SINE = 1
    COSINE = 2


class Chosen(NamedTuple):
    """What `choose` returns."""

    value: Tensor
    index: Tensor


@custom_op("table::choose")
def choose(x: Tensor, mode: Mode = Mode.SINE, side: Literal["left", "right"] = "left") -> Chosen:
    value = np.sin(x.numpy()) if mode is Mode.SINE else np.cos(x.numpy())
    return Chosen(of_numpy(value if side == "left" else -value), of_numpy(np.argsort(x.numpy())))


@choose.register_fake
def _(x, mode, side):
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)


@choose.register_backward
def _(grad_value, x, mode, side):
    slope = torch.cos(x) if mode is Mode.SINE else -torch.sin(x)
    return grad_value * (slope if side == "left" else -slope)


@custom_op("table::phases")
def phases(x: Tensor, factors: Sequence[complex] = (1j, 0.5)) -> Tensor:
    return of_numpy(x.numpy() * sum(factors).real - (x.numpy() ** 2) * sum(factors).imag)


@phases.register_fake
def _(x, factors):
    return torch.empty_like(x)


@phases.register_backward
def _(grad, x, factors):
    return grad * (sum(factors).real - 2 * x * sum(factors).imag)


@custom_op("table::quantized")
def quantized(x: Tensor, scheme: torch.qscheme = torch.per_tensor_affine) -> Tensor:
    return of_numpy(x.numpy() ** (2 if scheme is torch.per_tensor_affine else 3))


@quantized.register_fake
def _(x, scheme):
    return torch.empty_like(x)


@quantized.register_backward
def _(grad, x, scheme):
    return 2 * grad * x if scheme is torch.per_tensor_affine else 3 * grad * x**2


@custom_op("table::once")
def once(x: Tensor) -> Tensor:
    return of_numpy(x.numpy() ** 3)


@once.register_fake
def _(x):
    return torch.empty_like(x)


@once.register_backward(once_differentiable=True)
def _(grad, x):
    return 3 * grad * x * x


TABLE = {
    "by name": Row(lambda x: (cube(x),), lambda x: (x**3,), ((3,),), cube),
    "per input": Row(lambda x, y: (multiply(x, y),), lambda x, y: (x * y,), ((2, 3), (2, 3)), multiply),
    "hidden": Row(lambda x, w: (normalize(x, w, eps=1e-6),), normalize_reference, ((2, 3), (3,)), normalize),
    "hidden, silent": Row(lambda x: (silent_hidden(x),), lambda x: (x**3,), ((3,),), silent_hidden),
    "reference": Row(lambda x, y: (referenced(x, y, 3),), lambda x, y: (x.sin() * y**3,), ((3,), (3,)), referenced),
    "list, keyword-only, optional": Row(
        lambda x, y, w, b: (weighted([x, y], 3, weight=w, bias=b),),
        lambda x, y, w, b: ((x**3 + y**3) * w + b,),
        ((3,), (3,), (3,), (3,)),
        weighted,
    ),
    "optional left out": Row(lambda x, w: (weighted([x], weight=w),), lambda x, w: (x**2 * w,), ((3,), (3,)), weighted),
    "list out": Row(lambda x: tuple(pieces(x, [1, 3])[0]), lambda x: tuple((x**2).split([1, 3])), ((4,),), pieces),
    "list of optionals": Row(lambda x, y: (some([x, None, y]),), lambda x, y: (x**2 + y**2,), ((3,), (3,)), some),
    "in-place": Row(lambda x, k: _scaled(x, k), lambda x, k: (x * 2 * k,), ((3,), (3,)), scale_, mutates=True),
    "jvp": Row(lambda x, y: (with_jvp(x, y),), lambda x, y: (x.exp() * y,), ((3,), (3,)), with_jvp),
    "drop-in": Row(lambda x, y: drop_in(x, y), lambda x, y: (x * y * 2.0, x**2), ((3,), (3,)), drop_in),
    "enum, literal, named tuple": Row(
        lambda x: (choose(x, Mode.COSINE, "right").value,), lambda x: (-x.cos(),), ((3,),), choose
    ),
    "complex numbers": Row(
        lambda x: (phases(x, [2 - 1j, 1j, 0.5 - 0.5j]),),
        lambda x: (2.5 * x + 0.5 * x**2,),
        ((3,),),
        phases,
        is_saved=False,
    ),
    "qscheme": Row(
        lambda x: (quantized(x, torch.per_channel_affine) + quantized(x),), lambda x: (x**3 + x**2,), ((3,),), quantized
    ),
    "once differentiable": Row(lambda x: (once(x),), lambda x: (x**3,), ((3,),), once, has_second_order=False),
}


def _scaled(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    copy = x * 2
    scale_(copy, factor)
    return (copy,)
