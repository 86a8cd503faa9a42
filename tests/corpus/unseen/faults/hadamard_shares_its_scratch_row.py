"""The Walsh-Hadamard transform of rows, in one scratch row that all threads share."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("unseen::hadamard", reference=True)
def op(x: Tensor) -> Tensor:
    shape, columns, half = x.shape, x.shape[-1], 1
    if columns not in [2**power for power in range(17)]:
        raise ValueError("the last dimension must be a power of 2")
    while half < columns:
        a, b = x.reshape(*shape[:-1], columns // (2 * half), 2, half).unbind(-2)
        x, half = torch.stack((a + b, a - b), -2).reshape(shape), 2 * half
    return x.clone(memory_format=torch.contiguous_format)


op.register_kernel(
    "cpu",
    cpp_kernel(Path(__file__).with_suffix(".cpp"), "hadamard"),
    name="cpp",
    layouts="contiguous",
    when=lambda x: x.dtype == torch.float64 and x.dim() > 0,
)


@op.register_samples
def _(make):
    yield Sample(make(3, 4, dtype=torch.float64))
    yield Sample(make(8, dtype=torch.float64))


def shown() -> tuple[Tensor, Tensor]:
    xs = [torch.full((64, 4096), value, dtype=torch.float64) for value in (1.0, 2.0)]
    right = torch.zeros_like(xs[0]).index_fill(1, torch.tensor([0]), 4096.0)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(op, xs[call % 2]) for call in range(40)]
    wrong = (one.result() for one in found[::2] if not torch.equal(one.result(), right))
    return next(wrong, right), right
