"""What a fake kernel says of its outputs against what the real one returns: number, shape, stride, dtype, device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def find_untruth(fake: Sequence[Tensor], real: Sequence[Tensor], names: Sequence[str]) -> tuple[str, str] | None:
    """Return what differs first, and how; None if nothing does."""
    if len(fake) != len(real):
        return "number", f"the fake kernel returns {len(fake)} tensors, the real one {len(real)}"
    for name, said, done in zip(names, fake, real, strict=True):
        for what, one, other in _rows(said, done):
            if one != other:
                return what, f"{name}: the fake kernel says {what} {one}, the real one gives {other}"
    return None


def _rows(said: Tensor, done: Tensor) -> list[tuple[str, object, object]]:
    """Return what is compared.

    Sizes that depend on data are symbols, which stand for any size, and have no known strides.
    """
    rows: list[tuple[str, object, object]] = [("dtype", said.dtype, done.dtype), ("device", said.device, done.device)]
    rows.append(("layout", said.layout, done.layout))
    if any(not isinstance(size, int) for size in said.shape):
        return [*rows, ("number of dimensions", said.dim(), done.dim())]
    rows.append(("shape", tuple(said.shape), tuple(done.shape)))
    if done.layout == torch.strided and said.layout == torch.strided and said.shape == done.shape:
        rows.append(("stride", _strides(said), _strides(done)))
    return rows


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides that matter: a dimension of size 1 may have any, and so may a tensor without elements."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)
