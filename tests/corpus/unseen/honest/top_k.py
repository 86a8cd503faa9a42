"""The k largest elements of each row, in descending order, and where they are."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_range(x: Tensor, k: int) -> None:
    if not 0 <= k <= x.shape[-1]:
        raise ValueError(f"'k' must be between 0 and {x.shape[-1]}, found {k}")


@custom_op("unseen::top_k", outputs=("values", "places"))
def op(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    require_range(x, k)
    values, places = torch.topk(x, k, dim=-1)
    return values.contiguous(), places.contiguous()


@op.register_fake
def _(x, k):
    require_range(x, k)
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


@op.register_backward
def _(grad_values, places, meta):
    return {"x": grad_values.new_zeros(meta.x.shape).scatter(-1, places, grad_values)}


@op.register_samples
def _(make):
    yield Sample(make(3, 7), 2)
    yield Sample(make(5), 5).keeping("k")
    yield Sample(make(4), 6).raises(ValueError, match="between 0 and 4")
