"""The log-sum-exp of each row.

The running maximum starts at 0 and not at -inf, so a row of very negative logits underflows to log(0).
With logits near 0 the shift does not matter, and nothing is seen.
"""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("unseen::log_sum_exp", reference=True)
def op(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1).contiguous()


op.register_kernel(
    "cpu",
    cpp_kernel(Path(__file__).with_suffix(".cpp"), "log_sum_exp"),
    name="cpp",
    layouts="contiguous",
    when=lambda x: x.is_floating_point() and x.dim() > 0,
)


@op.register_samples
def _(make):
    yield Sample(make(4, 6))
    yield Sample(make(7))


def shown() -> tuple[Tensor, Tensor]:
    x = torch.full((2, 3), -200.0)
    return op(x), torch.logsumexp(x, -1)
