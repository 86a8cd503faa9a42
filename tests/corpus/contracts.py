"""Mutants whose backward raises, or returns what autograd repairs or refuses: number, shape, dtype, device, layout."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import CUBE, fit
from corpus.more_bases import (
    BROADCAST_PRODUCT,
    GROWTH,
    PRODUCT,
    SQUARE,
    WRITTEN_TWO,
    two_backward,
)
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample


def _both(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return grad * y, grad * x


def _of_shape(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """One dimension more than x has."""
    x, y = ctx.saved_tensors
    return (grad * y / 5).expand(5, *grad.shape), grad * x


def _pick_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: object) -> None:
    del output
    ctx.save_for_backward(inputs[1])
    ctx.shape = inputs[0].shape


def _pick_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A gradient for the index as well, which is an integer."""
    (index,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).index_add(0, index, grad), grad.sum(1)


def _narrow_sum(ctx: Any, of_square: Tensor | None, of_double: Tensor | None) -> Tensor | None:
    """Right where one of the gradients is undefined."""
    total = two_backward(ctx, of_square, of_double)
    return total if total is None or of_square is None or of_double is None else total.float()


def _lacks(grad: Tensor, x: Tensor) -> Tensor:
    raise NotImplementedError("later")


def _refuses(grad: Tensor, x: Tensor) -> Tensor:
    raise RuntimeError("derivative for cube is not differentiable: the op does not support forward AD")


def _lacks_tangent(tangent_x: Tensor, tangent_y: Tensor, x: Tensor, y: Tensor) -> Tensor:
    raise NotImplementedError("later")


CONTRACTS: tuple[Mutant, ...] = (
    plant(
        "contract_unreduced",
        "gradient shape",
        "contract",
        "The gradient of a weight that was broadcast is not reduced; the engine does it silently.",
        BROADCAST_PRODUCT.but(backward=_both),
    ),
    plant(
        "contract_shape",
        "gradient shape",
        "contract",
        "The gradient has one dimension more than its input; the engine sums over it.",
        PRODUCT.but(backward=_of_shape),
    ),
    plant(
        "contract_keepdim",
        "gradient shape",
        "contract",
        "The gradient of a weight keeps the dimension of size 1 that was summed over.",
        BROADCAST_PRODUCT.but(
            backward=lambda ctx, grad: (grad * ctx.saved_tensors[1], (grad * ctx.saved_tensors[0]).sum(0, keepdim=True))
        ),
    ),
    plant(
        "contract_flattened",
        "gradient shape",
        "contract",
        "The gradient is flattened.",
        SQUARE.but(backward=lambda ctx, grad: (2 * grad * ctx.saved_tensors[0]).flatten()),
    ),
    plant(
        "contract_dtype",
        "gradient dtype",
        "contract",
        "The gradient is float32, whatever the input is.",
        SQUARE.but(backward=lambda ctx, grad: (2 * grad * ctx.saved_tensors[0]).float()),
    ),
    plant(
        "contract_double",
        "gradient dtype",
        "contract",
        "The gradient is float64, whatever the input is.",
        SQUARE.but(backward=lambda ctx, grad: (2 * grad * ctx.saved_tensors[0]).double()),
    ),
    plant(
        "contract_complex",
        "gradient dtype",
        "contract",
        "The gradient of a real input is complex.",
        SQUARE.but(backward=lambda ctx, grad: torch.complex(2 * grad * ctx.saved_tensors[0], grad)),
    ),
    plant(
        "contract_few",
        "number of gradients",
        "contract",
        "There is one gradient too few.",
        PRODUCT.but(backward=lambda ctx, grad: (grad * ctx.saved_tensors[1],)),
    ),
    plant(
        "contract_many",
        "number of gradients",
        "contract",
        "There is one None too many.",
        PRODUCT.but(backward=lambda ctx, grad: (*_both(ctx, grad), None)),
    ),
    plant(
        "contract_device",
        "gradient device",
        "contract",
        "The gradient is on the device meta.",
        SQUARE.but(backward=lambda ctx, grad: (2 * grad * ctx.saved_tensors[0]).to("meta")),
    ),
    plant(
        "contract_sparse",
        "gradient layout",
        "contract",
        "The gradient of a strided input is sparse.",
        SQUARE.but(backward=lambda ctx, grad: (2 * grad * ctx.saved_tensors[0]).to_sparse()),
    ),
    plant(
        "contract_integer",
        "gradient of an integer",
        "contract",
        "The index, an integer, gets a gradient.",
        PRODUCT.but(
            samples=lambda make: [Sample(make(4, 3), make(6, dtype=torch.int64, low=0, high=4))],
            schema="(Tensor x, Tensor index) -> Tensor",
            kernel=lambda x, index: x.index_select(0, index),
            fake=lambda x, index: x.new_empty((index.shape[0], *x.shape[1:])),
            setup=_pick_save,
            backward=_pick_backward,
        ),
    ),
    plant(
        "contract_of_two_outputs",
        "gradient dtype",
        "contract",
        "With gradients of both outputs there, their sum is float32.",
        WRITTEN_TWO.but(backward=_narrow_sum),
    ),
    plant(
        "contract_only_when_alone",
        "gradient shape",
        "contract",
        "The gradient of the weight is not reduced where x needs none.",
        BROADCAST_PRODUCT.but(
            backward=lambda ctx, grad: (
                grad * ctx.saved_tensors[1],
                grad * ctx.saved_tensors[0]
                if not ctx.needs_input_grad[0]
                else fit(grad * ctx.saved_tensors[0], ctx.saved_tensors[1]),
            )
        ),
    ),
    plant(
        "pointwise_centred",
        "tag that does not hold",
        "schema",
        "The op subtracts a mean over rows, and is tagged pointwise.",
        CUBE.but(
            default=lambda x: x - x.mean(0),
            kernel=None,
            backward=lambda grad, x: grad - grad.mean(0),
            tags=(torch.Tag.pointwise,),
        ),
    ),
    plant(
        "contract_lacking",
        "raises",
        "contract",
        "The backward raises NotImplementedError at every call.",
        CUBE.but(backward=_lacks),
    ),
    plant(
        "contract_refusing",
        "raises",
        "contract",
        "The backward raises at every call, in the words in which torch refuses.",
        CUBE.but(backward=_refuses),
    ),
    plant(
        "contract_jvp_lacking",
        "raises",
        "forward_mode",
        "The jvp raises NotImplementedError at every call.",
        GROWTH.but(jvp=_lacks_tangent),
    ),
)
