"""Mutants whose values are wrong only for some sizes and special numbers, or in memory that is not theirs."""

import torch
from torch import Tensor

from corpus.bases import (
    CUBE,
    POLAR,
    RMS,
    SCALED_SQUARE,
    SOFTMAX,
    rms_kernel,
)
from corpus.forms import Rule
from corpus.more_bases import GROWTH, PACK, PEAK, SQUARE
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample


def _tail(size: int, value: float) -> Rule:
    """A cube whose elements from a place on have another value."""

    def kernel(x: Tensor) -> Tensor:
        out = (x**3).contiguous()
        out.reshape(-1)[size:] = value
        return out

    return kernel


def _last_vector(x: Tensor) -> Tensor:
    """Elements after the last whole group of four are left as they were."""
    out = (x**3).contiguous()
    whole = x.numel() // 4 * 4
    out.reshape(-1)[whole:] = x.reshape(-1)[whole:]
    return out


def _halves_rows_past(x: Tensor, w: Tensor, alpha: float) -> Tensor:
    """Blocks after the first are computed from the block before."""
    out = (alpha * x * x * w).contiguous()
    flat = out.reshape(-1)
    flat[256:] = flat[: max(0, flat.numel() - 256)].clone()
    return out


def _cube_gradient_tail(grad: Tensor, x: Tensor) -> Tensor:
    """Elements past the first block of 256 have no gradient."""
    inside = torch.arange(x.numel(), device=x.device).reshape(x.shape) < 256
    return 3 * grad * x * x * inside


def _refuses_empty(x: Tensor) -> Tensor:
    if x.numel() == 0:
        raise ValueError("a grid of size 0 cannot be launched")
    return x**3


def _scalar_is_row(x: Tensor) -> Tensor:
    """A tensor without dimensions gets one."""
    return (x**3).contiguous() if x.dim() else (x**3).reshape(1)


def _single(x: Tensor, dim: int) -> Tensor:
    """A row of one element is passed through."""
    return x.contiguous().clone() if x.dim() and x.shape[dim] == 1 else torch.softmax(x, dim).contiguous()


def _unwritten(shape: torch.Size, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _last_unwritten(x: Tensor) -> Tensor:
    """The last element is never written."""
    out = _unwritten(x.shape, x)
    out.view(-1)[:-1] = (x**3).reshape(-1)[:-1]
    return out


def _negative_unwritten(x: Tensor) -> Tensor:
    """Only what is not negative is written."""
    out = _unwritten(x.shape, x)
    out[x >= 0] = (x**3)[x >= 0]
    return out


def _second_unwritten(r: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of the second output is never written."""
    up = _unwritten(r.shape, r)
    up[1:] = (r * angle.sin())[1:]
    return (r * angle.cos()).contiguous(), up


def _gradient_unwritten(grad: Tensor, x: Tensor) -> Tensor:
    """The first element of the gradient is never written."""
    out = torch.empty_like(x)
    out.view(-1)[1:] = (3 * grad * x * x).reshape(-1)[1:]
    return out


def _beside(x: Tensor, place: int) -> None:
    """Writes one element beside a tensor, where its memory has room for it."""
    target = x.storage_offset() + place
    room = x.untyped_storage().nbytes() // x.element_size()
    if x.is_contiguous() and x.numel() and 0 <= target < room:
        x.data.as_strided((1,), (1,), target).fill_(-7)  # .data: no version counter sees it


def _writes_past(x: Tensor) -> Tensor:
    out = (x**3).contiguous()
    _beside(x, x.numel())
    return out


def _writes_before(x: Tensor) -> Tensor:
    out = (x**3).contiguous()
    _beside(x, -1)
    return out


def _writes_past_weight(x: Tensor, w: Tensor, alpha: float) -> Tensor:
    out = (alpha * x * x * w).contiguous()
    _beside(w, w.numel())
    return out


SIZES: tuple[Mutant, ...] = (
    plant(
        "size_past_block",
        "only for sizes above a block",
        "sizes",
        "Elements past the first 256 are zero.",
        CUBE.but(kernel=_tail(256, 0.0)),
    ),
    plant(
        "size_past_block_copied",
        "only for sizes above a block",
        "sizes",
        "Elements past the first 256 repeat those before.",
        SCALED_SQUARE.but(kernel=_halves_rows_past),
    ),
    plant(
        "size_past_block_gradient",
        "only for sizes above a block",
        "sizes",
        "Elements past the first 256 have no gradient.",
        CUBE.but(backward=_cube_gradient_tail),
    ),
    plant(
        "size_vector_tail",
        "tail",
        "sizes",
        "Elements after the last whole vector of four are not computed.",
        CUBE.but(kernel=_last_vector, samples=lambda make: [Sample(make(4, 3))]),
    ),
    plant("size_empty", "only for size 0", "sizes", "An empty tensor raises.", CUBE.but(kernel=_refuses_empty)),
    plant(
        "size_one", "only for size 1", "sizes", "A row of one element is passed through.", SOFTMAX.but(kernel=_single)
    ),
    plant(
        "size_zero_dim",
        "only for size 1",
        "sizes",
        "A tensor without dimensions becomes one of size 1.",
        CUBE.but(kernel=_scalar_is_row),
    ),
    plant(
        "special_nan_swallowed",
        "special values",
        "special_values",
        "NaN becomes zero.",
        CUBE.but(kernel=lambda x: (x**3).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).contiguous()),
    ),
    plant(
        "special_inf_clipped",
        "special values",
        "special_values",
        "Infinity becomes 1e30.",
        GROWTH.but(kernel=lambda x, y: (x.exp() * y).nan_to_num(nan=torch.nan, posinf=1e30, neginf=-1e30).contiguous()),
    ),
    plant(
        "special_nan_ignored",
        "special values",
        "special_values",
        "The maximum overlooks NaN.",
        PEAK.but(
            kernel=lambda x: x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1).contiguous()
        ),
    ),
    plant(
        "special_inf_in_sum",
        "special values",
        "special_values",
        "A row with an infinity is normalised to zero, not NaN.",
        RMS.but(
            kernel=lambda x, weight, eps: tuple(
                y.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf) for y in rms_kernel(x, weight, eps)
            )
        ),
    ),
    plant(
        "memory_tail_unwritten",
        "unwritten memory",
        "uninitialised",
        "The last element is never written.",
        CUBE.but(kernel=_last_unwritten, has_reference=False),
    ),
    plant(
        "memory_negative_unwritten",
        "unwritten memory",
        "uninitialised",
        "Negative elements are never written.",
        SQUARE.but(kernels={"CPU": _negative_unwritten}),
    ),
    plant(
        "memory_second_unwritten",
        "unwritten memory",
        "uninitialised",
        "The first row of the second output is never written.",
        POLAR.but(kernel=_second_unwritten),
    ),
    plant(
        "memory_gradient_unwritten",
        "unwritten memory",
        "uninitialised",
        "The first element of the gradient is never written.",
        CUBE.but(backward=_gradient_unwritten, is_once_differentiable=True),
    ),
    plant(
        "bounds_past_end",
        "out of bounds",
        "bounds",
        "One element past the end of the input is written to.",
        PACK.but(kernel=_writes_past, default=lambda x: x**3, backward=lambda grad, x: 3 * grad * x * x),
    ),
    plant(
        "bounds_before_start",
        "out of bounds",
        "bounds",
        "One element before the beginning of the input is written to.",
        PACK.but(kernel=_writes_before, default=lambda x: x**3, backward=lambda grad, x: 3 * grad * x * x),
    ),
    plant(
        "bounds_past_weight",
        "out of bounds",
        "bounds",
        "One element past the end of the weight is written to.",
        SCALED_SQUARE.but(kernel=_writes_past_weight),
    ),
)
