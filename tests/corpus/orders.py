"""Mutants of second order and of forward mode: the first gradient is right."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import CUBE, RMS, SCALED_SQUARE, fit, one_samples
from corpus.forms import Rule, Written
from corpus.more_bases import (
    GROWTH,
    SQUARE,
    WRITTEN_PRODUCT,
    growth_jvp,
    save_inputs,
)
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample


def _by_numpy(grad: Tensor, x: Tensor) -> Tensor:
    return grad * torch.from_numpy(3 * x.detach().numpy() ** 2)


def _intermediate(ctx: Any, inputs: tuple[Tensor], output: object) -> None:
    """Saves 2x, which autograd does not know to depend on x."""
    del output
    ctx.save_for_backward(2 * inputs[0])


def _rms_constant_statistic(grad_out: Tensor, grad_rstd: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Any:
    """What arrives for the statistic in a second backward is dropped."""
    g = grad_out * weight
    total = (g * x).sum(-1, keepdim=True) + 0 * grad_rstd
    return {"x": g * rstd - x * (rstd**3 * total / x.shape[-1]), "weight": fit(grad_out * x * rstd, weight)}


def _twice_wrong(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Twice too large in x."""
    grad, x = ctx.saved_tensors
    return 3 * outer * x * x, 12 * outer * grad * x


WRONG_TWICE = Written(
    samples=one_samples, forward=lambda grad, x: 3 * grad * x * x, setup=save_inputs, backward=_twice_wrong
)
wrong_twice: Rule = WRONG_TWICE.declare("wrong_twice").apply


def _jvp_of_both(tangent_x: Tensor | None, tangent_y: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """Right where both have a tangent; where one has, it is dropped."""
    if tangent_x is None or tangent_y is None:
        return torch.zeros_like(y)
    return growth_jvp(tangent_x, tangent_y, x, y)


def _written_jvp_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: object) -> None:
    del output
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


def _written_jvp(ctx: Any, tangent_x: Tensor, tangent_y: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return tangent_x * y - x * tangent_y


def _jvp_expanded(tangent_x: Tensor | None, tangent_y: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    factor = 2 if tangent_x is not None and tangent_x.dim() and not tangent_x.stride(0) else 1
    return factor * growth_jvp(tangent_x, tangent_y, x, y)


ORDERS: tuple[Mutant, ...] = (
    plant(
        "second_detached",
        "second order only",
        "second_order",
        "What the backward reads of x is detached.",
        CUBE.but(backward=lambda grad, x: 3 * grad * x.detach() ** 2),
    ),
    plant(
        "second_numpy",
        "second order only",
        "second_order",
        "The backward computes by NumPy, with no derivative of its own.",
        CUBE.but(backward=_by_numpy),
    ),
    plant(
        "second_gradient_detached",
        "second order only",
        "second_order",
        "The incoming gradient is detached.",
        CUBE.but(backward=lambda grad, x: 3 * grad.detach() * x * x),
    ),
    plant(
        "second_statistic",
        "second order only",
        "second_order",
        "The hidden statistic is taken for a constant.",
        RMS.but(backward=_rms_constant_statistic),
    ),
    plant(
        "second_intermediate",
        "second order only",
        "second_order",
        "What is saved is computed from x, out of autograd's sight.",
        SQUARE.but(setup=_intermediate, backward=lambda ctx, grad: grad * ctx.saved_tensors[0]),
    ),
    plant(
        "second_factor",
        "second order only",
        "second_order",
        "The derivative of the backward is twice too large.",
        CUBE.but(backward=lambda grad, x: wrong_twice(grad, x)),
    ),
    plant(
        "second_mixed",
        "second order only",
        "second_order",
        "The mixed derivative is lost: the weight is detached.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha: {
                "x": fit(2 * alpha * grad * x * w.detach(), x),
                "w": fit(alpha * grad * x * x, w),
            }
        ),
    ),
    plant(
        "jvp_sign",
        "wrong jvp only",
        "forward_mode",
        "The tangent has the wrong sign.",
        GROWTH.but(jvp=lambda tangent_x, tangent_y, x, y: -growth_jvp(tangent_x, tangent_y, x, y)),
    ),
    plant(
        "jvp_term",
        "wrong jvp only",
        "forward_mode",
        "The tangent of y is forgotten.",
        GROWTH.but(jvp=lambda tangent_x, tangent_y, x, y: growth_jvp(tangent_x, None, x, y)),
    ),
    plant(
        "jvp_subset",
        "wrong jvp only",
        "forward_mode",
        "Where only one input has a tangent, it is dropped.",
        GROWTH.but(jvp=_jvp_of_both),
    ),
    plant(
        "jvp_of_function",
        "wrong jvp only",
        "forward_mode",
        "The jvp of a Function has a wrong sign in one term.",
        WRITTEN_PRODUCT.but(setup=_written_jvp_save, jvp=_written_jvp),
    ),
    plant(
        "jvp_tiny",
        "wrong jvp only",
        "adjoint",
        "The tangent is 0.001 % too large.",
        GROWTH.but(jvp=lambda tangent_x, tangent_y, x, y: 1.00001 * growth_jvp(tangent_x, tangent_y, x, y)),
    ),
    plant(
        "jvp_expanded",
        "wrong jvp only",
        "forward_mode",
        "A tangent that is expanded is taken twice.",
        GROWTH.but(jvp=_jvp_expanded),
    ),
    plant(
        "jvp_transposed",
        "wrong jvp only",
        "adjoint",
        "The tangents of a square input are transposed.",
        GROWTH.but(
            samples=lambda make: [Sample(make(3, 3), make(3, 3))],
            jvp=lambda tangent_x, tangent_y, x, y: growth_jvp(tangent_x, tangent_y, x, y).mT,
        ),
    ),
)
