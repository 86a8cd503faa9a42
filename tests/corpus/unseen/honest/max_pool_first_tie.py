"""Max pooling without overlap; of equal elements the first one is the maximum, and gets the whole gradient."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_divisor(x: Tensor, width: int) -> None:
    if width < 1 or x.shape[-1] % width:
        raise ValueError(f"'width' must divide {x.shape[-1]}, found {width}")


@custom_op("unseen::max_pool_first_tie", outputs=("out", "places"), hidden=("places",))
def op(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    require_divisor(x, width)
    windows = x.reshape(*x.shape[:-1], x.shape[-1] // width, width)
    out, first = windows.max(-1)
    starts = torch.arange(0, x.shape[-1], width, device=x.device)
    return out.contiguous(), (first + starts).contiguous()


@op.register_fake
def _(x, width):
    require_divisor(x, width)
    shape = (*x.shape[:-1], x.shape[-1] // width)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


@op.register_backward
def _(grad_out, places, meta):
    return {"x": grad_out.new_zeros(meta.x.shape).scatter(-1, places, grad_out)}


@op.register_samples
def _(make):
    yield Sample(make(2, 6), 3).keeping("width")
    yield Sample(make.tensor([1.0, 1.0, 0.0, 2.0]).requires_grad_(), 2).keeping("width").named("a tie")
    yield Sample(make(5), 2).raises(ValueError, match="must divide 5")
