"""A signal times a Gaussian window of its length.

The kernel computes every dtype with `expf`, so float64 has the precision of float32: a subtle error of 1e-8.
The author wrote the kernel for float32 and made a template of it later.
"""

from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("unseen::gaussian_window", reference=True)
def op(x: Tensor, sigma: float) -> Tensor:
    n = x.shape[-1]
    z = (torch.arange(n, dtype=x.dtype, device=x.device) - (n - 1) / 2) / sigma
    return (x * torch.exp(-0.5 * z.square())).contiguous()


op.register_kernel(
    "cpu",
    cpp_kernel(Path(__file__).with_suffix(".cpp"), "gaussian_window"),
    name="cpp",
    layouts="contiguous",
    when=lambda x: x.dtype in (torch.float32, torch.float64) and x.dim() > 0,
)


@op.register_samples
def _(make):
    yield Sample(make(9), 2.5).keeping("sigma")
    yield Sample(make(2, 12), 4.0).keeping("sigma")


def shown() -> tuple[Tensor, Tensor]:
    x = torch.ones(16, dtype=torch.float64)
    with op.use_kernel("default"):
        right = op(x, 3.0)
    return op(x, 3.0), right
