"""A softmax over the last dimension in C++.

The kernel subtracts the maximum of a row in the memory of its input, to save a buffer.
The result is right, and the logits of the caller are shifted.
"""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.kernels import cpp_kernel

KERNEL = cpp_kernel(Path(__file__).with_suffix(".cpp"), "exp_normalize")


@custom_op("unseen::exp_normalize", shapes="x: *b [n] -> output: *b [n]")
def op(x: Tensor) -> Tensor:
    return KERNEL(x.contiguous())


@op.register_backward
def _(grad, output):
    return output * (grad - (grad * output).sum(-1, keepdim=True))


def shown() -> tuple[Tensor, Tensor]:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    before = x.clone()
    op(x)
    return x, before
