"""Mutants whose values are wrong: in the formula, at a boundary, for some sizes, for special numbers, in memory."""

import torch
import torch.nn.functional as F
from torch import Tensor

from custom_autograd.core.samples import Sample
from custom_autograd.testing.mutants.bases import (
    ADD_SQUARE,
    CUBE,
    JOIN,
    LINEAR,
    PICK,
    POLAR,
    RMS,
    SCALED_SQUARE,
    SOFTMAX,
    fit,
    rms_kernel,
    write_sum,
)
from custom_autograd.testing.mutants.forms import Rule
from custom_autograd.testing.mutants.more_bases import CHANNELS, GROWTH, PACK, PEAK, PRODUCT, RUNNING, SQUARE
from custom_autograd.testing.mutants.mutant import Mutant, plant


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


def _index_past_end(x: Tensor, index: Tensor) -> Tensor:
    """The last row is never taken: the one before it stands for it."""
    return x.index_select(0, index.clamp(max=max(0, x.shape[0] - 2)))


def _write_where_contiguous(x: Tensor, y: Tensor, alpha: float = 1.0) -> None:
    """Only writes to a contiguous tensor; of others a copy is written to."""
    x.contiguous().add_(y * y, alpha=alpha)


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
        x.as_strided((1,), (1,), target).fill_(-7)


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


VALUES: tuple[Mutant, ...] = (
    plant(
        "value_consistent",
        "wrong value",
        "reference",
        "The kernel computes another function, and the backward its gradient.",
        SCALED_SQUARE.but(
            kernel=lambda x, w, alpha: (alpha * x * x * w + 0.1 * x).contiguous(),
            backward=lambda grad, x, w, alpha: {
                "x": fit(grad * (2 * alpha * x * w + 0.1), x),
                "w": fit(alpha * grad * x * x, w),
            },
        ),
    ),
    plant(
        "value_rare_branch",
        "rare branch",
        "reference",
        "Elements above 8 are clipped.",
        CUBE.but(kernel=lambda x: (x.clamp(-8, 8) ** 3).contiguous()),
    ),
    plant(
        "value_rare_gradient",
        "rare branch",
        "directional",
        "The gradient of elements above 8 is zero.",
        CUBE.but(backward=lambda grad, x: 3 * grad * x * x * (x.abs() <= 8)),
    ),
    plant(
        "value_overflow",
        "rare branch",
        "reference",
        "The exponential is taken before the maximum is subtracted.",
        SOFTMAX.but(kernel=lambda x, dim: (x.exp() / x.exp().sum(dim, keepdim=True)).contiguous()),
    ),
    plant(
        "value_eps_ignored",
        "ignores eps",
        "reference",
        "eps is not looked at.",
        RMS.but(kernel=lambda x, weight, eps: rms_kernel(x, weight, 0.0)),
    ),
    plant(
        "value_eps_default",
        "ignores eps",
        "reference",
        "eps is always its default.",
        RMS.but(kernel=lambda x, weight, eps: rms_kernel(x, weight, 1e-6)),
    ),
    plant(
        "value_optional_ignored",
        "ignores an optional input",
        "reference",
        "The bias is not added.",
        LINEAR.but(kernel=lambda x, weight, bias: F.linear(x, weight)),
    ),
    plant(
        "value_alpha_ignored",
        "ignores a scalar",
        "reference",
        "The factor of what is added in place is ignored.",
        ADD_SQUARE.but(has_reference=True, default=write_sum, kernel=lambda x, y, alpha: write_sum(x, y, 1.0)),
    ),
    plant(
        "value_hidden",
        "wrong hidden output",
        "reference",
        "The hidden statistic is returned squared.",
        RMS.but(kernel=lambda x, weight, eps: (rms_kernel(x, weight, eps)[0], rms_kernel(x, weight, eps)[1] ** 2)),
    ),
    plant(
        "value_kernels_differ",
        "kernels differ",
        "kernels",
        "The kernel of the CPU rounds, that of all devices does not.",
        GROWTH.but(has_reference=False, kernel=lambda x, y: (x.exp() * y).round(decimals=2)),
    ),
    plant(
        "value_kernels_of_list",
        "kernels differ",
        "kernels",
        "The kernel of the CPU joins in reverse order.",
        JOIN.but(
            has_reference=False,
            kernel=lambda xs, dim: torch.cat(list(xs)[::-1], dim),
            samples=lambda make: [Sample([make(2, 3), make(2, 3)])],
        ),
    ),
    plant("value_index", "off by one", "reference", "The last row is never taken.", PICK.but(kernel=_index_past_end)),
    plant(
        "value_running",
        "off by one",
        "reference",
        "The running sum leaves out its own element.",
        RUNNING.but(kernel=lambda x: (x.cumsum(-1) - x).contiguous()),
    ),
    plant(
        "value_running_gradient",
        "off by one",
        "gradcheck",
        "The gradient of the running sum leaves out its own element.",
        RUNNING.but(backward=lambda grad: grad.flip(-1).cumsum(-1).flip(-1) - grad),
    ),
    plant(
        "value_joined_gradient",
        "off by one",
        "gradcheck",
        "The pieces of the gradient are taken one element late.",
        JOIN.but(
            backward=lambda grad, xs, dim: {"xs": list(grad.roll(-1, dim).split([x.shape[dim] for x in xs], dim))}
        ),
    ),
    plant(
        "value_duplicates",
        "scatter",
        "gradcheck",
        "Of rows that were taken twice, one gradient is lost.",
        PICK.but(backward=lambda grad, index, meta: {"x": grad.new_zeros(meta.x.shape).index_copy(0, index, grad)}),
    ),
    plant(
        "value_ties",
        "ties",
        "reference_gradients",
        "Every one of several greatest elements gets the whole gradient.",
        PEAK.but(backward=lambda grad, output, x: grad.unsqueeze(-1) * (x == output.unsqueeze(-1))),
    ),
    plant(
        "value_kink",
        "special values",
        "reference_gradients",
        "The gradient at 0 is NaN.",
        CUBE.but(
            samples=lambda make: [Sample(torch.tensor([0.0, 0.5, -1.5], dtype=make.dtype, requires_grad=True))],
            backward=lambda grad, x: 3 * grad * x**3 / x,
        ),
    ),
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
        SQUARE.but(kernels={"CPU": _writes_before}, backward=lambda ctx, grad: 3 * grad * ctx.saved_tensors[0] ** 2),
    ),
    plant(
        "bounds_past_weight",
        "out of bounds",
        "bounds",
        "One element past the end of the weight is written to.",
        SCALED_SQUARE.but(kernel=_writes_past_weight),
    ),
    plant(
        "mutated_copy",
        "declared write",
        "reference",
        "Where the tensor is not contiguous, a copy of it is written to.",
        ADD_SQUARE.but(has_reference=True, kernel=_write_where_contiguous),
    ),
    plant(
        "mutated_factor",
        "declared write",
        "gradcheck",
        "The gradient of what is added in place lacks its 2.",
        ADD_SQUARE.but(backward=lambda grad, y, alpha: {"x": grad, "y": alpha * grad * y}),
    ),
    plant(
        "mutated_lost",
        "declared write",
        "gradcheck",
        "The gradient of the value before the write is zero.",
        ADD_SQUARE.but(backward=lambda grad, y, alpha: {"x": torch.zeros_like(grad), "y": 2 * alpha * grad * y}),
    ),
    plant(
        "channels_gradient",
        "wrong axis",
        "reference_gradients",
        "The weight's gradient belongs to the channels of the reversed image.",
        CHANNELS.but(
            backward=lambda grad, x, w: {"x": grad * w[:, None, None], "w": (grad * x).sum((0, 2, 3)).flip(0)}
        ),
    ),
    plant(
        "library_value_gradient",
        "factor",
        "gradcheck",
        "Both gradients of a product are halved.",
        PRODUCT.but(backward=lambda ctx, grad: (grad * ctx.saved_tensors[1] / 2, grad * ctx.saved_tensors[0] / 2)),
    ),
)
