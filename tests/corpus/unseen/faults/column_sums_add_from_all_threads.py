"""The sums of the columns of a matrix.

The rows are divided among threads, and all of them add to the same sums: updates are lost.
Small matrices run in one thread, so the tests of the author never had two.
"""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("unseen::column_sums", reference=True)
def op(x: Tensor) -> Tensor:
    return x.sum(0)


op.register_kernel(
    "cpu",
    cpp_kernel(Path(__file__).with_suffix(".cpp"), "column_sums"),
    name="cpp",
    layouts="contiguous",
    when=lambda x: x.dtype in (torch.float32, torch.float64) and x.dim() == 2,
)


@op.register_samples
def _(make):
    yield Sample(make(6, 4))
    yield Sample(make(16, 3))


def shown() -> tuple[Tensor, Tensor]:
    x, threads = torch.ones(2_000_000, 2), torch.get_num_threads()
    right = x.sum(0)
    torch.set_num_threads(4)
    try:
        found = (op(x) for _ in range(200))  # the threads of one call may happen to run one after the other
        return next((sums for sums in found if not torch.equal(sums, right)), right), right
    finally:
        torch.set_num_threads(threads)
