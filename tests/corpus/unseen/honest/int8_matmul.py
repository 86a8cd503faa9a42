"""A product of int8 matrices, accumulated in int32, with a floating-point scale for each column."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x.to(torch.int32) @ weight.to(torch.int32)


def require_int8(x: Tensor, weight: Tensor) -> None:
    for name, value in (("x", x), ("weight", weight)):
        if value.dtype != torch.int8:
            raise TypeError(f"'{name}' must be int8, found {value.dtype}")


@custom_op("unseen::int8_matmul")
def op(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    require_int8(x, weight)
    wide = torch.promote_types(scale.dtype, torch.float32)  # a sum may be larger than float16
    return (product(x, weight).to(wide) * scale).to(scale.dtype)


@op.register_fake
def _(x, weight, scale):
    require_int8(x, weight)
    return scale.new_empty((x.shape[0], weight.shape[1]))


@op.register_backward
def _(grad, x, weight, meta):
    wide = torch.promote_types(grad.dtype, torch.float32)
    return {"scale": (grad * product(x, weight).to(wide)).sum(0).to(grad.dtype)}


@op.register_samples
def _(make):
    numbers = {"dtype": torch.int8, "low": -100, "high": 100}
    yield Sample(make(3, 8, **numbers), make(8, 4, **numbers), make(4, low=0.001, high=0.01))
    yield Sample(make(1, 5, **numbers), make(5, 2, **numbers), make(2, low=0.001, high=0.01))
    yield Sample(make(2, 3), make(3, 2, **numbers), make(2)).raises(TypeError, match="'x' must be int8")
