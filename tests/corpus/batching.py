"""Mutants that are wrong only under vmap, in nestings of transforms, or in what they call non-differentiable."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import POLAR
from corpus.more_bases import (
    COMPOSITE,
    GROWTH,
    WRITTEN_PRODUCT,
    WRITTEN_TWO,
    first,
    growth_jvp,
    growth_vmap,
)
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample

Dims = tuple[int | None, ...]


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


def _vmap_middle(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """A batch of x along the middle is taken twice."""
    factor = 2 if x.dim() > 2 and in_dims == (1, None) else 1
    return factor * growth_vmap(info, in_dims, x, y)[0], 0


def _vmap_of_four(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """What comes after the fourth of a batch is zero."""
    out = growth_vmap(info, in_dims, x, y)[0]
    return torch.cat([out[:4], torch.zeros_like(out[4:])]), 0


def _written_vmap(info: Any, in_dims: Dims, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The sum over the batch is added to every element."""
    del info
    out = first(x, in_dims[0]) * first(y, in_dims[1])
    return out + 0.1 * out.sum(0), 0


def _nondifferentiable(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs)


def _is_batched(tensor: Tensor) -> bool:
    """Whether another vmap is around this one."""
    return bool(torch.func.debug_unwrap(tensor, recurse=True).dim() > tensor.dim())


BATCHING: tuple[Mutant, ...] = (
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
        "vmap_middle_dim",
        "wrong vmap only",
        "vmap",
        "Where only x is batched, and in the middle, the result is doubled.",
        GROWTH.but(vmap=_vmap_middle),
    ),
    plant(
        "vmap_of_four",
        "wrong vmap only",
        "vmap",
        "Of a batch, the first four are computed.",
        GROWTH.but(vmap=_vmap_of_four),
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
