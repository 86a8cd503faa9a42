"""Mutants whose gradient is a wrong formula: sign, factor, missing term, transposed, swapped, constant."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import JOIN, LINEAR, POLAR, RMS, SCALED_SQUARE, SOFTMAX, fit
from corpus.more_bases import PRODUCT, SQUARE
from corpus.mutant import Mutant, plant


def _swapped(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return grad * x, grad * y


def _none_for_second(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    _, y = ctx.saved_tensors
    return grad * y, None


FORMULAS: tuple[Mutant, ...] = (
    plant(
        "sign_of_square",
        "sign",
        "gradcheck",
        "The gradient of x has the wrong sign.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": fit(-2 * alpha * grad * x * w, x),
                "w": fit(alpha * grad * x * x, w),
            }
        ),
    ),
    plant(
        "sign_in_softmax",
        "sign",
        "gradcheck",
        "The mean is added instead of subtracted.",
        SOFTMAX.but(backward=lambda grad, output, dim: output * (grad + (grad * output).sum(dim, keepdim=True))),
    ),
    plant(
        "sign_of_angle",
        "sign",
        "directional",
        "One of two terms of the gradient of the angle has the wrong sign.",
        POLAR.but(
            backward=lambda grad_across, grad_up, r, angle: {
                "r": grad_across * angle.cos() + grad_up * angle.sin(),
                "angle": r * (grad_up * angle.cos() + grad_across * angle.sin()),
            }
        ),
    ),
    plant(
        "factor_two",
        "factor",
        "gradcheck",
        "The 2 of the derivative of a square is missing.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": fit(alpha * grad * x * w, x),
                "w": fit(alpha * grad * x * x, w),
            }
        ),
    ),
    plant(
        "factor_tiny",
        "factor",
        "reference_gradients",
        "One gradient is 0.05 % too large.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": fit(2.001 * alpha * grad * x * w, x),
                "w": fit(alpha * grad * x * x, w),
            }
        ),
    ),
    plant(
        "factor_alpha_forgotten",
        "factor",
        "gradcheck",
        "The scalar alpha is not in the gradient of w.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": fit(2 * alpha * grad * x * w, x),
                "w": fit(grad * x * x, w),
            }
        ),
    ),
    plant(
        "factor_of_library_op",
        "factor",
        "directional",
        "The gradient of an op of the dispatcher is three times too large.",
        SQUARE.but(backward=lambda ctx, grad: 6 * grad * ctx.saved_tensors[0]),
    ),
    plant(
        "factor_of_features",
        "factor",
        "gradcheck",
        "The mean is differentiated as a sum.",
        RMS.but(
            backward=lambda grad_out, grad_rstd, x, weight, rstd: {
                "x": grad_out * weight * rstd
                - x * rstd**3 * ((grad_out * weight * x).sum(-1, keepdim=True) + grad_rstd),
                "weight": fit(grad_out * x * rstd, weight),
            }
        ),
    ),
    plant(
        "term_of_softmax",
        "missing term",
        "gradcheck",
        "The term of the sum is missing.",
        SOFTMAX.but(backward=lambda grad, output, dim: output * grad),
    ),
    plant(
        "term_of_statistic",
        "missing term",
        "gradcheck",
        "The statistic is taken for a constant.",
        RMS.but(
            backward=lambda grad_out, grad_rstd, x, weight, rstd: {
                "x": grad_out * weight * rstd + 0 * grad_rstd,
                "weight": fit(grad_out * x * rstd, weight),
            }
        ),
    ),
    plant(
        "term_of_radius",
        "missing term",
        "directional",
        "The gradient of r has only the first of its two terms.",
        POLAR.but(
            backward=lambda grad_across, grad_up, r, angle: {
                "r": grad_across * angle.cos(),
                "angle": r * (grad_up * angle.cos() - grad_across * angle.sin()),
            }
        ),
    ),
    plant(
        "transposed_weight",
        "transposed",
        "gradcheck",
        "The gradient of the weight is transposed, which only a square weight lets through.",
        LINEAR.but(
            samples=lambda make: list(LINEAR.samples(make))[2:],
            backward=lambda grad, x, weight: {"x": grad @ weight, "weight": x.mT @ grad, "bias": lambda: grad.sum(0)},
        ),
    ),
    plant(
        "transposed_product",
        "transposed",
        "reference_gradients",
        "The gradient of x is multiplied with the transposed weight, which is square.",
        LINEAR.but(
            samples=lambda make: list(LINEAR.samples(make))[2:],
            backward=lambda grad, x, weight: {
                "x": grad @ weight.mT,
                "weight": grad.mT @ x,
                "bias": lambda: grad.sum(0),
            },
        ),
    ),
    plant(
        "swapped_gradients",
        "swapped",
        "gradcheck",
        "Two gradients of one shape are swapped.",
        PRODUCT.but(backward=_swapped),
    ),
    plant(
        "swapped_in_list",
        "swapped",
        "gradcheck",
        "The gradients of a list come in reverse order.",
        JOIN.but(
            samples=lambda make: list(JOIN.samples(make))[:1],
            backward=lambda grad, xs, dim: {"xs": list(grad.split([x.shape[dim] for x in xs], dim))[::-1]},
        ),
    ),
    plant(
        "swapped_outputs",
        "swapped",
        "gradcheck",
        "The incoming gradients of two outputs are swapped.",
        POLAR.but(
            backward=lambda grad_across, grad_up, r, angle: {
                "r": grad_up * angle.cos() + grad_across * angle.sin(),
                "angle": r * (grad_across * angle.cos() - grad_up * angle.sin()),
            }
        ),
    ),
    plant(
        "lost_none",
        "lost gradient",
        "gradcheck",
        "A gradient that is needed is None.",
        PRODUCT.but(backward=_none_for_second),
    ),
    plant(
        "lost_zeros",
        "lost gradient",
        "directional",
        "The gradient of w is zero.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {"x": fit(2 * alpha * grad * x * w, x), "w": torch.zeros_like(w)}
        ),
    ),
    plant(
        "lost_in_list",
        "lost gradient",
        "gradcheck",
        "Of a list, only the first tensor gets a gradient.",
        JOIN.but(
            backward=lambda grad, xs, dim: {
                "xs": [piece * (place == 0) for place, piece in enumerate(grad.split([x.shape[dim] for x in xs], dim))]
            }
        ),
    ),
    plant(
        "lost_for_second_output",
        "one output only",
        "gradcheck",
        "The gradient of the second output is dropped.",
        POLAR.but(
            backward=lambda grad_across, grad_up, r, angle: {
                "r": grad_across * angle.cos() + 0 * grad_up,
                "angle": -r * grad_across * angle.sin(),
            }
        ),
    ),
    plant(
        "doubled_for_second_output",
        "one output only",
        "directional",
        "The gradient of the second output is counted twice.",
        POLAR.but(
            backward=lambda grad_across, grad_up, r, angle: {
                "r": grad_across * angle.cos() + 2 * grad_up * angle.sin(),
                "angle": r * (2 * grad_up * angle.cos() - grad_across * angle.sin()),
            }
        ),
    ),
)
