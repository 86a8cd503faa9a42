"""Prints the time in µs in which this process imports a package, declares 1,000 ops with it and calls each.

Run by first_calls.py: python benchmarks/thousand_ops.py ours|torch.library 1|2, where 2 calls forward and backward.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor

OPS = 1000


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """The op."""
    return x * y


def declared_by_us(index: int) -> Any:
    """An op with fake, backward and samples."""
    from custom_autograd import Sample, custom_op

    op = custom_op(f"thousand::op_{index}", kernel)
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    op.register_samples(lambda make: [Sample(make(3), make(3))])
    return op


def declared_by_torch(index: int) -> Any:
    """The same with torch.library, which has no samples."""

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    op = torch.library.custom_op(f"thousand::op_{index}", kernel, mutates_args=())
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_autograd(backward, setup_context=save)
    return op


def main() -> None:
    """The command line."""
    declare = {"ours": declared_by_us, "torch.library": declared_by_torch}[sys.argv[1]]
    has_backward = sys.argv[2] == "2"
    x, y = torch.rand(8, requires_grad=has_backward), torch.rand(8)
    start = time.perf_counter()
    ops = [declare(index) for index in range(OPS)]
    for op in ops:
        out = op(x, y)
        if has_backward:
            out.backward(y)
    print((time.perf_counter() - start) * 1e6)


if __name__ == "__main__":
    main()
