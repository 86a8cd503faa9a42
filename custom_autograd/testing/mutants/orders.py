"""Mutants of second order, forward mode, batching and their nestings: the first gradient is right."""

from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.samples import Sample
from custom_autograd.testing.mutants.bases import CUBE, POLAR, RMS, SCALED_SQUARE, fit
from custom_autograd.testing.mutants.more_bases import (
    COMPOSITE,
    GROWTH,
    SQUARE,
    WRITTEN_PRODUCT,
    WRITTEN_TWO,
    first,
    growth_jvp,
)
from custom_autograd.testing.mutants.mutant import Mutant, plant

Dims = tuple[int | None, ...]


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


class _WrongTwice(torch.autograd.Function):
    """3 g x², whose own backward is twice too large in x."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(grad, x)
        return 3 * grad * x * x

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor]:
        grad, x = ctx.saved_tensors
        return 3 * outer * x * x, 12 * outer * grad * x


def _jvp_of_both(tangent_x: Tensor | None, tangent_y: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """Right where both have a tangent; where one has, it is dropped."""
    if tangent_x is None or tangent_y is None:
        return torch.zeros_like(y)
    return growth_jvp(tangent_x, tangent_y, x, y)


def _second_batch_only(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """Where x is not batched, its exponential is forgotten."""
    del info
    factor = first(x, in_dims[0])
    return (factor if in_dims[0] is None else factor.exp()) * first(y, in_dims[1]), 0


def _vmap_in_dim(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The batch of y is taken to be first, wherever it is."""
    del info
    return first(x, in_dims[0]).exp() * (y if in_dims[1] is not None else y.unsqueeze(0)).reshape(
        -1, *_rest(y, in_dims[1])
    ), 0


def _rest(y: Tensor, dim: int | None) -> list[int]:
    return [size for place, size in enumerate(y.shape) if dim is None or place != dim % y.dim()]


def _vmap_out_dim(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The batch comes out first, and is said to be last."""
    del info
    out = first(x, in_dims[0]).exp() * first(y, in_dims[1])
    return out.movedim(0, -1).contiguous().reshape(out.shape), 0


def _written_vmap(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The sum over the batch is added to every element."""
    del info
    out = first(x, in_dims[0]) * first(y, in_dims[1])
    return out + 0.1 * out.sum(0), 0


def _written_jvp_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: object) -> None:
    del output
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


def _written_jvp(ctx: Any, tangent_x: Tensor, tangent_y: Tensor) -> Tensor:
    x, y = ctx.saved_tensors
    return tangent_x * y - x * tangent_y


def _nondifferentiable(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs)


def _is_batched(tensor: Tensor) -> bool:
    """Whether another vmap is around this one."""
    return bool(torch.func.debug_unwrap(tensor, recurse=True).dim() > tensor.dim())


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
        CUBE.but(backward=lambda grad, x: _WrongTwice.apply(grad, x)),
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
        "jvp_transposed",
        "wrong jvp only",
        "adjoint",
        "The tangents of a square input are transposed.",
        GROWTH.but(
            samples=lambda make: [Sample(make(3, 3), make(3, 3))],
            jvp=lambda tangent_x, tangent_y, x, y: growth_jvp(tangent_x, tangent_y, x, y).mT,
        ),
    ),
    plant(
        "vmap_not_batched",
        "only under vmap",
        "vmap",
        "Where x is not batched, its exponential is forgotten.",
        GROWTH.but(vmap=_second_batch_only),
    ),
    plant(
        "vmap_in_dim",
        "wrong vmap only",
        "vmap",
        "The batch of y is taken to be first, wherever it is.",
        GROWTH.but(vmap=_vmap_in_dim),
    ),
    plant(
        "vmap_out_dim",
        "wrong vmap only",
        "vmap",
        "The batch comes out last, and is said to be first.",
        GROWTH.but(vmap=_vmap_out_dim),
    ),
    plant(
        "vmap_first_for_all",
        "wrong vmap only",
        "vmap",
        "The first element of the batch of x stands for all.",
        GROWTH.but(
            vmap=lambda info, in_dims, x, y: (
                first(x, in_dims[0])[:1].exp()
                * first(y, in_dims[1]).expand(info.batch_size, *first(y, in_dims[1]).shape[1:]),
                0,
            )
        ),
    ),
    plant(
        "vmap_of_function",
        "wrong vmap only",
        "vmap",
        "The batching rule of a Function mixes the elements of the batch.",
        WRITTEN_PRODUCT.but(attributes={"vmap": staticmethod(_written_vmap)}),
    ),
    plant(
        "nesting_vmap_detached",
        "wrong in nestings",
        "nesting",
        "The batching rule detaches x: its gradient under vmap is zero.",
        GROWTH.but(vmap=lambda info, in_dims, x, y: (first(x, in_dims[0]).detach().exp() * first(y, in_dims[1]), 0)),
    ),
    plant(
        "nesting_jvp_detached",
        "wrong in nestings",
        "nesting",
        "The jvp detaches x: forward over reverse loses a term.",
        GROWTH.but(jvp=lambda tangent_x, tangent_y, x, y: growth_jvp(tangent_x, tangent_y, x.detach(), y)),
    ),
    plant(
        "nesting_vmap_of_vmap",
        "wrong in nestings",
        "nesting",
        "In a batch of batches, every value is doubled.",
        GROWTH.but(
            samples=lambda make: [Sample(make(3), make(3))],
            vmap=lambda info, in_dims, x, y: (
                first(x, in_dims[0]).exp() * first(y, in_dims[1]) * (2 if _is_batched(x) else 1),
                0,
            ),
        ),
    ),
    plant(
        "nondifferentiable_output",
        "non-differentiable output",
        "non_differentiable",
        "The second output depends on the inputs, and is said to carry no gradient.",
        POLAR.but(
            non_differentiable=("up",),
            backward=lambda grad, r, angle: {"r": grad * angle.cos(), "angle": -r * grad * angle.sin()},
        ),
    ),
    plant(
        "nondifferentiable_marked",
        "non-differentiable output",
        "non_differentiable",
        "A Function marks an output as non-differentiable that depends on x.",
        WRITTEN_TWO.but(setup=_nondifferentiable, backward=lambda ctx, grad, _: 2 * grad * ctx.saved_tensors[0]),
    ),
    plant(
        "nondifferentiable_detached",
        "non-differentiable output",
        "gradcheck",
        "An op made of PyTorch operations detaches its input.",
        COMPOSITE.but(kernels={"CompositeImplicitAutograd": lambda x: x.detach() * x.detach()}),
    ),
)
