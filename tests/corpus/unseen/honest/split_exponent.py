"""A float32 as mantissa and exponent, x = mantissa * 2^exponent; other dtypes are refused."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_float32(x: Tensor) -> None:
    if x.dtype != torch.float32:
        raise TypeError(f"'x' must be float32, found {x.dtype}")


@custom_op("unseen::split_exponent", outputs=("mantissa", "exponent"))
def op(x: Tensor) -> tuple[Tensor, Tensor]:
    require_float32(x)
    mantissa, exponent = torch.frexp(x)
    return mantissa.contiguous(), exponent.contiguous()


@op.register_fake
def _(x):
    require_float32(x)
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int32)


@op.register_backward
def _(grad_mantissa, exponent):
    return {"x": torch.ldexp(grad_mantissa, -exponent)}


@op.register_samples
def _(make):
    yield Sample(make(5, dtype=torch.float32, low=0.6, high=0.9))
    yield Sample(make(2, 3, dtype=torch.float32, low=-3.5, high=-2.5))
    yield Sample(make(2, dtype=torch.float64)).raises(TypeError, match="must be float32")
