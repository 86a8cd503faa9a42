"""A signal with samples added at both ends, in one of three modes."""

from typing import Literal

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def sources(length: int, amount: int, mode: str, device: torch.device) -> Tensor:
    """Return the source of each sample; for "zeros" that is `length` outside of the signal."""
    places = torch.arange(-amount, length + amount, device=device)
    if mode == "circular":
        return places % length
    if mode == "reflect":
        return (length - 1) - ((length - 1) - places.abs()).abs()
    return torch.where((places < 0) | (places >= length), torch.full_like(places, length), places)


def require_range(x: Tensor, amount: int) -> None:
    if not 0 <= amount < x.shape[-1]:
        raise ValueError(f"'amount' must be between 0 and {x.shape[-1] - 1}, found {amount}")


@custom_op("unseen::pad_signal")
def op(x: Tensor, amount: int, mode: Literal["zeros", "reflect", "circular"] = "zeros") -> Tensor:
    require_range(x, amount)
    extended = torch.nn.functional.pad(x, (0, 1))
    return extended[..., sources(x.shape[-1], amount, mode, x.device)].contiguous()


@op.register_fake
def _(x, amount, mode="zeros"):
    require_range(x, amount)
    return x.new_empty((*x.shape[:-1], x.shape[-1] + 2 * amount))


@op.register_backward
def _(grad, amount, mode, meta):
    *batch, length = meta.x.shape
    extended = grad.new_zeros((*batch, length + 1))
    index = sources(length, amount, mode, grad.device)
    return {"x": extended.index_add(-1, index, grad)[..., :-1].contiguous()}


@op.register_samples
def _(make):
    yield Sample(make(2, 5), 2)
    yield Sample(make(6), 3, mode="reflect")
    yield Sample(make(4), 3, mode="circular")
    yield Sample(make(3), 3).raises(ValueError, match="between 0 and 2")
