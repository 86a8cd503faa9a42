"""How many numbers lie between edges; a number that equals an edge belongs to the bin below it.

The kernel searches from the other side, so such a number is counted in the bin above.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import numpy_kernel


@custom_op("unseen::bin_counts", reference=True, non_differentiable=("x", "edges"))
def op(x: Tensor, edges: Tensor) -> Tensor:
    place = torch.bucketize(x.reshape(-1), edges)
    return torch.zeros(edges.shape[0] + 1, dtype=torch.int64, device=x.device).index_add(
        0, place, torch.ones_like(place)
    )


@op.register_kernel("cpu", name="numpy", when=lambda x, edges: x.dtype == edges.dtype in (torch.float32, torch.float64))
@numpy_kernel
def _(x, edges):
    place = np.searchsorted(edges, x.reshape(-1), side="right")
    return np.bincount(place, minlength=edges.shape[0] + 1).astype(np.int64)


@op.register_samples
def _(make):
    yield Sample(make(10), make.tensor([-1.0, 0.1, 1.0]))
    yield Sample(make(3, 4), make.tensor([0.3, 0.5]))


def shown() -> tuple[Tensor, Tensor]:
    return op(torch.tensor([1.0]), torch.tensor([1.0])), torch.tensor([1, 0])
