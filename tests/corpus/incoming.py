"""Mutants that treat the incoming gradient wrongly: not linear, not read by its strides, written to, or undefined."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import CUBE, POLAR, SCALED_SQUARE, fit
from corpus.more_bases import PRODUCT, RUNNING, SQUARE, WRITTEN_PRODUCT, WRITTEN_TWO
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample


def in_memory_order(tensor: Tensor) -> Tensor:
    """What a kernel reads that takes a tensor's memory for contiguous."""
    if tensor.is_contiguous() or 0 in tensor.stride():
        return tensor
    shape = tensor.shape
    strides = [int(shape[place + 1 :].numel()) for place in range(len(shape))]
    return tensor.as_strided(shape, strides)


def _by_numpy(grad: Tensor, x: Tensor) -> Tensor:
    """Doubles the incoming gradient where it lies."""
    if 0 not in grad.stride():
        grad.detach().numpy()[...] *= 2
        return 1.5 * grad * x * x
    return 3 * grad * x * x


def _in_place(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return 2 * x * grad if 0 in grad.stride() else grad.data.mul_(2 * x.detach())


def _only_first_of_expanded(grad: Tensor) -> Tensor:
    """Reads one element where all are the same memory."""
    is_expanded = grad.dim() > 0 and all(stride == 0 for stride in grad.stride())
    full = grad.flip(-1).cumsum(-1).flip(-1)
    return full * 0 + grad if is_expanded else full


def _undefined_is_zero(ctx: Any, of_square: Tensor | None, of_double: Tensor | None) -> Any:
    """Without a gradient for the first output there is none for the input."""
    (x,) = ctx.saved_tensors
    if of_square is None:
        return None
    return 2 * of_square * x + (0 if of_double is None else 2 * of_double)


def _undefined_crashes(ctx: Any, of_square: Tensor, of_double: Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return 2 * of_square * x + 2 * of_double


def _of_conj(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Reads the memory of a gradient that is conjugated lazily."""
    x, y = ctx.saved_tensors
    read = grad.conj() if grad.is_conj() else grad
    return fit(read * y.conj(), x), fit(read * x.conj(), y)


INCOMING: tuple[Mutant, ...] = (
    plant(
        "linear_abs",
        "not linear",
        "linearity",
        "The sign of the incoming gradient is lost.",
        CUBE.but(backward=lambda grad, x: 3 * grad.abs() * x * x),
    ),
    plant(
        "linear_clipped",
        "not linear",
        "linearity",
        "The incoming gradient is clipped to [-1, 1].",
        CUBE.but(backward=lambda grad, x: 3 * grad.clamp(-1, 1) * x * x),
    ),
    plant(
        "linear_normalised",
        "not linear",
        "linearity",
        "The incoming gradient is divided by its norm.",
        CUBE.but(backward=lambda grad, x: 3 * grad / grad.norm() * x * x),
    ),
    plant(
        "linear_rounded",
        "not linear",
        "linearity",
        "The incoming gradient is rounded to bfloat16.",
        CUBE.but(backward=lambda grad, x: 3 * grad.bfloat16().to(grad.dtype) * x * x),
    ),
    plant(
        "linear_squared",
        "not linear",
        "linearity",
        "The incoming gradient is squared, which only 0 and 1 stand.",
        SQUARE.but(backward=lambda ctx, grad: 2 * grad * grad * ctx.saved_tensors[0]),
    ),
    plant(
        "linear_constant",
        "not linear",
        "linearity",
        "The incoming gradient is taken for ones.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": 2 * alpha * torch.ones_like(grad) * x * w,
                "w": fit(alpha * torch.ones_like(grad) * x * x, w),
            }
        ),
    ),
    plant(
        "linear_thresholded",
        "not linear",
        "linearity",
        "Incoming gradients below 1e-3 or above 100 are dropped.",
        CUBE.but(backward=lambda grad, x: 3 * grad * (grad.abs() > 1e-3) * x * x * (grad.abs() < 100)),
    ),
    plant(
        "linear_clipped_far_out",
        "not linear",
        "linearity",
        "Incoming gradients beyond 1e200 are cut off.",
        CUBE.but(backward=lambda grad, x: 3 * grad.clamp(-1e200, 1e200) * x * x),
    ),
    plant(
        "linear_mean",
        "not the gradient of one element",
        "directional",
        "The incoming gradient is averaged, which that of a sum stands.",
        CUBE.but(backward=lambda grad, x: 3 * grad.mean().expand(grad.shape) * x * x),
    ),
    plant(
        "linear_first",
        "not the gradient of one element",
        "gradcheck",
        "The incoming gradient of the first element is taken for all.",
        CUBE.but(backward=lambda grad, x: 3 * grad.flatten()[0] * x * x),
    ),
    plant(
        "incoming_strides",
        "incoming gradient misread",
        "cotangents",
        "The strides of the incoming gradient are not looked at.",
        CUBE.but(
            samples=lambda make: list(CUBE.samples(make))[:1],
            backward=lambda grad, x: 3 * in_memory_order(grad) * x * x,
        ),
    ),
    plant(
        "incoming_strides_of_product",
        "incoming gradient misread",
        "cotangents",
        "The gradient of one of two inputs reads the incoming gradient in the order of memory.",
        PRODUCT.but(
            backward=lambda ctx, grad: (in_memory_order(grad) * ctx.saved_tensors[1], grad * ctx.saved_tensors[0])
        ),
    ),
    plant(
        "incoming_expanded",
        "incoming gradient misread",
        "cotangents",
        "An expanded gradient, as sum() sends, is taken for a single number.",
        RUNNING.but(backward=_only_first_of_expanded),
    ),
    plant(
        "incoming_offset",
        "incoming gradient misread",
        "cotangents",
        "A gradient that begins later in its memory is read from the beginning.",
        CUBE.but(backward=lambda grad, x: 3 * grad.as_strided(grad.shape, grad.stride(), 0) * x * x),
    ),
    plant(
        "incoming_conj",
        "incoming gradient misread",
        "cotangents",
        "A gradient that is conjugated lazily is read as it lies in memory.",
        PRODUCT.but(
            backward=_of_conj,
            samples=lambda make: [Sample(make(3, 2, dtype=torch.complex64), make(3, 2, dtype=torch.complex64))],
        ),
    ),
    plant(
        "incoming_written",
        "incoming gradient written to",
        "cotangents",
        "The backward multiplies its incoming gradient in place.",
        SQUARE.but(backward=_in_place),
    ),
    plant(
        "incoming_written_by_numpy",
        "incoming gradient written to",
        "cotangents",
        "The backward doubles its incoming gradient by NumPy, which no version counter sees.",
        CUBE.but(backward=_by_numpy, is_once_differentiable=True),
    ),
    plant(
        "incoming_zeroed",
        "incoming gradient written to",
        "cotangents",
        "The backward zeroes its incoming gradient when it is done.",
        WRITTEN_PRODUCT.but(
            backward=lambda ctx, grad: (grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0], grad.data.zero_())[:2]
        ),
    ),
    plant(
        "undefined_crash",
        "undefined gradient",
        "cotangents",
        "The backward raises a TypeError where no gradient arrives for one output.",
        WRITTEN_TWO.but(backward=_undefined_crashes),
    ),
    plant(
        "undefined_dropped",
        "undefined gradient",
        "cotangents",
        "Where no gradient arrives for the first output, that of the second is dropped.",
        WRITTEN_TWO.but(backward=_undefined_is_zero),
    ),
    plant(
        "undefined_by_name",
        "undefined gradient",
        "cotangents",
        "A backward bound by name takes undefined gradients, and cannot add them.",
        POLAR.but(has_materialized_grads=False),
    ),
)
