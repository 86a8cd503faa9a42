"""Mutants whose values are wrong: in the formula, at a boundary, in a rare branch, or in one kernel of two."""

import torch
import torch.nn.functional as F
from torch import Tensor

from corpus.bases import (
    ADD_SQUARE,
    CUBE,
    JOIN,
    LINEAR,
    PICK,
    RMS,
    SCALED_SQUARE,
    SOFTMAX,
    fit,
    rms_kernel,
    write_sum,
)
from corpus.more_bases import CHANNELS, GROWTH, PEAK, PRODUCT, RUNNING
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample


def _index_past_end(x: Tensor, index: Tensor) -> Tensor:
    """The last row is never taken: the one before it stands for it."""
    return x.index_select(0, index.clamp(max=max(0, x.shape[0] - 2)))


def _write_where_contiguous(x: Tensor, y: Tensor, alpha: float = 1.0) -> None:
    """Only writes to a contiguous tensor; of others a copy is written to."""
    x.contiguous().add_(y * y, alpha=alpha)


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
        "The number eps is not looked at.",
        RMS.but(kernel=lambda x, weight, eps: rms_kernel(x, weight, 0.0)),
    ),
    plant(
        "value_eps_default",
        "ignores eps",
        "reference",
        "The number eps is always its default.",
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
        "mutated_copy",
        "declared write",
        "layouts",
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
