"""Mutants that read memory wrongly: strides, offsets, alignment, channels last, conjugation; and lose precision."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import (
    COMPLEX_PRODUCT,
    CUBE,
    LINEAR,
    RMS,
    SCALED_SQUARE,
    fit,
    one_samples,
    rms_kernel,
)
from corpus.forms import Declared
from corpus.incoming import in_memory_order
from corpus.more_bases import CHANNELS, PACK, SQUARE, WRITTEN_PRODUCT
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample

VECTOR = 16


def _from_start(x: Tensor) -> Tensor:
    """Reads from the beginning of the memory, wherever the tensor begins."""
    return x.as_strided(x.shape, x.stride(), 0)


def _aligned_down(x: Tensor) -> Tensor:
    """Reads vectors of 16 bytes, whose address is rounded down."""
    shift = x.data_ptr() % VECTOR // x.element_size() if x.numel() else 0
    return x.as_strided(x.shape, x.stride(), x.storage_offset() - shift) if shift <= x.storage_offset() else x


def _first_of_expanded(x: Tensor) -> Tensor:
    """Takes rows that are the same memory for zeros, except the first."""
    if x.dim() and x.shape[0] > 1 and x.stride(0) == 0:
        x = x.clone(memory_format=torch.contiguous_format)
        x[1:] = 0
    return x


def _channels_first(x: Tensor) -> Tensor:
    """Reads channels last as if they came first."""
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).reshape(x.shape)
    return x


def _unconjugated(z: Tensor) -> Tensor:
    """Reads the memory of a tensor that is conjugated lazily."""
    return z.conj() if z.is_conj() else z


def _by_unconjugated(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return grad * _unconjugated(y).conj(), grad * x.conj()


def _sum_in_own_dtype(product: Tensor) -> Tensor:
    """Adds row after row, each time rounded to the dtype."""
    total = torch.zeros_like(product[0])
    for row in product:
        total = total + row
    return total


def _statistic_in_own_dtype(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sums of squares in the dtype of x, one after the other."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return rms_kernel(x, weight, eps)
    squares = _sum_in_own_dtype((x * x / x.shape[-1]).movedim(-1, 0)).unsqueeze(-1).float()
    rstd = torch.rsqrt(squares + eps)
    return (x * rstd * weight).to(x.dtype).contiguous(), rstd.contiguous()


def _overflowing(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sums of squares in float16, which ends at 65504."""
    if x.dtype != torch.float16:
        return rms_kernel(x, weight, eps)
    rstd = torch.rsqrt((x * x).sum(-1, keepdim=True).float() / x.shape[-1] + eps)
    return (x * rstd * weight).to(x.dtype).contiguous(), rstd.contiguous()


ROW_SUM = Declared(
    schema="(Tensor x) -> Tensor",
    samples=one_samples,
    default=lambda x: x.sum(0),
    kernel=_sum_in_own_dtype,
)

LAYOUTS: tuple[Mutant, ...] = (
    plant(
        "layout_strides",
        "only for one layout",
        "layouts",
        "The strides of the input are not looked at.",
        CUBE.but(kernel=lambda x: (in_memory_order(x) ** 3).contiguous()),
    ),
    plant(
        "layout_strides_of_weight",
        "only for one layout",
        "layouts",
        "The strides of the weight are not looked at.",
        LINEAR.but(kernel=lambda x, weight, bias: torch.nn.functional.linear(x, in_memory_order(weight), bias)),
    ),
    plant(
        "layout_strides_in_library",
        "only for one layout",
        "layouts",
        "An op of the dispatcher reads memory in order.",
        SQUARE.but(kernels={"CPU": lambda x: (in_memory_order(x) ** 2).contiguous()}),
    ),
    plant(
        "layout_saved",
        "only for one layout",
        "layouts",
        "The backward does not look at the strides of the input.",
        CUBE.but(backward=lambda grad, x: 3 * grad * in_memory_order(x) ** 2),
    ),
    plant(
        "layout_offset",
        "only for one layout",
        "layouts",
        "The input is read from the beginning of its memory.",
        CUBE.but(kernel=lambda x: (_from_start(x) ** 3).contiguous()),
    ),
    plant(
        "layout_offset_of_weight",
        "only for one layout",
        "layouts",
        "The weight is read from the beginning of its memory.",
        SCALED_SQUARE.but(kernel=lambda x, w, alpha: (alpha * x * x * _from_start(w)).contiguous()),
    ),
    plant(
        "layout_misaligned",
        "misaligned",
        "layouts",
        "Addresses that are not a multiple of 16 are rounded down.",
        CUBE.but(kernel=lambda x: (_aligned_down(x) ** 3).contiguous()),
    ),
    plant(
        "layout_expanded",
        "only for one layout",
        "layouts",
        "Of an expanded input, only the first row is read.",
        CUBE.but(kernel=lambda x: (_first_of_expanded(x) ** 3).contiguous()),
    ),
    plant(
        "layout_copied_expanded",
        "only for one layout",
        "layouts",
        "A copy of an expanded input has one row only.",
        PACK.but(kernel=lambda x: _first_of_expanded(x).clone(memory_format=torch.contiguous_format)),
    ),
    plant(
        "layout_channels_last",
        "channels last",
        "layouts",
        "Images with channels last are read as if channels came first.",
        CHANNELS.but(kernel=lambda x, w: (_channels_first(x) * w[:, None, None]).contiguous()),
    ),
    plant(
        "layout_channels_last_gradient",
        "channels last",
        "layouts",
        "The backward reads channels last as if they came first.",
        CHANNELS.but(
            backward=lambda grad, x, w: {"x": grad * w[:, None, None], "w": (grad * _channels_first(x)).sum((0, 2, 3))}
        ),
    ),
    plant(
        "layout_conj",
        "conj view",
        "layouts",
        "A Function reads an input that is conjugated lazily as it lies in memory.",
        WRITTEN_PRODUCT.but(samples=COMPLEX_PRODUCT.samples, forward=lambda x, y: _unconjugated(x) * y),
    ),
    plant(
        "layout_conj_saved",
        "conj view",
        "layouts",
        "The backward reads a saved input as it lies in memory.",
        WRITTEN_PRODUCT.but(samples=COMPLEX_PRODUCT.samples, backward=_by_unconjugated),
    ),
    plant(
        "conj_forgotten",
        "wrong conj",
        "complex",
        "The conjugation in the gradient of z is missing.",
        COMPLEX_PRODUCT.but(backward=lambda grad, z, w: {"z": fit(grad * w, z), "w": fit(grad * z.conj(), w)}),
    ),
    plant(
        "conj_of_gradient",
        "wrong conj",
        "complex",
        "The incoming gradient is conjugated instead of the factor.",
        COMPLEX_PRODUCT.but(backward=lambda grad, z, w: {"z": fit(grad.conj() * w, z), "w": fit(grad.conj() * z, w)}),
    ),
    plant(
        "conj_real_part",
        "wrong conj",
        "complex",
        "The imaginary part of one gradient is dropped.",
        COMPLEX_PRODUCT.but(
            backward=lambda grad, z, w: {
                "z": fit(torch.complex((grad * w.conj()).real, torch.zeros_like(grad.real)), z),
                "w": fit(grad * z.conj(), w),
            }
        ),
    ),
    plant(
        "conj_twice",
        "wrong conj",
        "complex",
        "One gradient is conjugated as a whole.",
        COMPLEX_PRODUCT.but(
            backward=lambda grad, z, w: {
                "z": fit(grad * w.conj(), z),
                "w": fit((grad * z.conj()).conj().resolve_conj(), w),
            }
        ),
    ),
    plant(
        "dtype_bfloat16_inside",
        "precision",
        "reference",
        "The kernel computes in bfloat16, whatever comes in.",
        CUBE.but(kernel=lambda x: (x.bfloat16() ** 3).to(x.dtype).contiguous()),
    ),
    plant(
        "dtype_only_bfloat16",
        "only in one dtype",
        "low_precision",
        "In bfloat16 the scalar alpha is forgotten.",
        SCALED_SQUARE.but(
            kernel=lambda x, w, alpha: ((1.0 if x.dtype == torch.bfloat16 else alpha) * x * x * w).contiguous()
        ),
    ),
    plant(
        "dtype_only_half_gradient",
        "only in one dtype",
        "low_precision",
        "In float16 the gradient of x is halved.",
        CUBE.but(backward=lambda grad, x: (1.5 if x.dtype == torch.float16 else 3) * grad * x * x),
    ),
    plant(
        "dtype_accumulates",
        "low-precision accumulation",
        "low_precision",
        "The gradient of the weight is summed over 4096 rows in the dtype of the input.",
        SCALED_SQUARE.but(
            samples=lambda make: [Sample(make(4096, 1, low=0.5, high=1.5), make(1, low=0.5, high=1.5))],
            parts={"row_sum": ROW_SUM},
            backward=lambda grad, x, w, alpha: {
                "x": fit(2 * alpha * grad * x * w, x),
                "w": torch.ops.mutants.row_sum(alpha * grad * x * x),
            },
        ),
    ),
    plant(
        "dtype_accumulates_forward",
        "low-precision accumulation",
        "low_precision",
        "The statistic over 4096 features is kept in the dtype of the input.",
        RMS.but(
            samples=lambda make: [Sample(make(2, 4096), make(4096))],
            kernel=lambda x, weight, eps: _statistic_in_own_dtype(x, weight, eps),
        ),
    ),
    plant(
        "dtype_float16_overflow",
        "low-precision accumulation",
        "low_precision",
        "In float16 the squares are summed before they are divided, which overflows.",
        RMS.but(
            samples=lambda make: [Sample(make(2, 4096, low=5.0, high=7.0), make(4096))],
            kernel=lambda x, weight, eps: _overflowing(x, weight, eps),
        ),
    ),
)
