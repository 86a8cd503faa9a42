"""Mutants whose gradient is reduced wrongly: axis, broadcast, sum, and the subset of inputs that need one."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import JOIN, LINEAR, RMS, SCALED_SQUARE, SOFTMAX, fit, rms_backward
from corpus.more_bases import CHANNELS, RUNNING, WRITTEN_PRODUCT
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample


def _only_alone(grad: Tensor, x: Tensor, w: Tensor, alpha: float, needs: Any) -> dict[str, Tensor]:
    """The gradient of w is right only together with that of x, which computes what it needs."""
    shared = alpha * grad * x if needs.x else torch.zeros_like(grad)
    return {"x": fit(2 * shared * w, x), "w": fit(shared * x, w)}


def _shifted_needs(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Gives the gradient of x for y where only y needs one."""
    x, y = ctx.saved_tensors
    needs_x, needs_y = ctx.needs_input_grad
    if needs_x and needs_y:
        return grad * y, grad * x
    return (grad * y, None) if needs_x else (None, grad * y)


def _first_pieces(grad: Tensor, xs: list[Tensor], dim: int, needed: list[bool]) -> list[Tensor | None]:
    pieces = iter(grad.split([x.shape[dim] for x in xs], dim))
    return [next(pieces) if is_needed else None for is_needed in needed]


REDUCTIONS: tuple[Mutant, ...] = (
    plant(
        "needs_all",
        "ignores a needed subset",
        "gradcheck",
        "The gradient of w is zero where x needs none.",
        SCALED_SQUARE.but(backward=_only_alone),
    ),
    plant(
        "needs_shifted",
        "ignores a needed subset",
        "gradcheck",
        "Where only y needs a gradient, it gets that of x.",
        WRITTEN_PRODUCT.but(backward=_shifted_needs),
    ),
    plant(
        "needs_in_list",
        "ignores a needed subset",
        "gradcheck",
        "Where only some tensors of a list need gradients, they get those of the first ones.",
        JOIN.but(
            samples=lambda make: list(JOIN.samples(make))[:1],
            backward=lambda grad, xs, dim, needs: {"xs": _first_pieces(grad, xs, dim, needs.xs)},
        ),
    ),
    plant(
        "axis_of_bias",
        "wrong axis",
        "gradcheck",
        "The gradient of the bias is summed over the features, as many as there are rows.",
        LINEAR.but(
            samples=lambda make: list(LINEAR.samples(make))[2:],
            backward=lambda grad, x, weight: {"x": grad @ weight, "weight": grad.mT @ x, "bias": grad.sum(1)},
        ),
    ),
    plant(
        "axis_of_softmax",
        "wrong axis",
        "gradcheck",
        "The backward sums over the last dimension, whichever was asked for.",
        SOFTMAX.but(backward=lambda grad, output, dim: output * (grad - (grad * output).sum(-1, keepdim=True))),
    ),
    plant(
        "axis_of_running_sum",
        "wrong axis",
        "gradcheck",
        "The backward sums along the first dimension.",
        RUNNING.but(backward=lambda grad: grad.flip(0).cumsum(0).flip(0)),
    ),
    plant(
        "reduction_mean",
        "missing reduction",
        "gradcheck",
        "The gradient of a weight that was broadcast is averaged, not summed.",
        SCALED_SQUARE.but(
            samples=lambda make: list(SCALED_SQUARE.samples(make))[:1],
            backward=lambda grad, x, w, alpha: {"x": 2 * alpha * grad * x * w, "w": (alpha * grad * x * x).mean(0)},
        ),
    ),
    plant(
        "reduction_first_row",
        "missing reduction",
        "directional",
        "The gradient of a weight that was broadcast is that of the first row.",
        SCALED_SQUARE.but(
            samples=lambda make: list(SCALED_SQUARE.samples(make))[:1],
            backward=lambda grad, x, w, alpha: {"x": 2 * alpha * grad * x * w, "w": (alpha * grad * x * x)[0]},
        ),
    ),
    plant(
        "reduction_of_images",
        "missing reduction",
        "gradcheck",
        "The gradient of the weight of a channel is that of the first image.",
        CHANNELS.but(backward=lambda grad, x, w: {"x": grad * w[:, None, None], "w": (grad * x)[0].sum((1, 2))}),
    ),
    plant(
        "broadcast_batches",
        "wrong broadcast",
        "gradcheck",
        "The weight's gradient leaves out all batches but the last, where there are several.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": 2 * alpha * grad * x * w,
                "w": fit((alpha * grad * x * x)[-1] if x.dim() > 2 else alpha * grad * x * x, w),
            }
        ),
    ),
    plant(
        "broadcast_in_gradient",
        "wrong broadcast",
        "gradcheck",
        "The statistic is multiplied along the wrong dimension of a square input.",
        RMS.but(
            samples=lambda make: [Sample(make(3, 3), make(3), 0.1)],
            backward=lambda grad_out, grad_rstd, x, weight, rstd: rms_backward(
                grad_out, grad_rstd, x, weight, rstd.mT.expand(x.shape)
            ),
        ),
    ),
)
