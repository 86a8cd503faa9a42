"""The same op declared with this package and with torch.library; neither package is imported before it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """The op."""
    return x * y


def with_custom_autograd(name: str) -> Any:
    """An op with fake, backward and samples."""
    from custom_autograd import Sample, custom_op

    op = custom_op(name, kernel)
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    op.register_samples(lambda make: [Sample(make(3), make(3))])
    return op


def with_torch_library(name: str) -> Any:
    """The same with torch.library, which has no samples."""

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    op = torch.library.custom_op(name, kernel, mutates_args=())
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_autograd(backward, setup_context=save)
    return op


DECLARE = {"": with_custom_autograd, "torch.library ": with_torch_library}
"""By the prefix that the cases of a package have in the figures."""
