"""The weighted sum of the tracks of a recording.

The kernel keeps one buffer for each length and returns a tensor on it, so the next call overwrites an earlier result.
The cache came with a note that it "removes an allocation from the hot loop".
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op

WORKSPACES: dict[tuple[int, np.dtype], np.ndarray] = {}


@custom_op("unseen::mixdown")
def op(tracks: Tensor, gains: Tensor) -> Tensor:
    samples, weights = tracks.numpy(), gains.numpy()
    key = samples.shape[1], samples.dtype
    out = WORKSPACES.setdefault(key, np.empty(key[0], key[1]))
    np.sum(samples * weights[:, None], axis=0, out=out)
    return torch.from_numpy(out)


@op.register_fake
def _(tracks, gains):
    return tracks.new_empty(tracks.shape[1])


@op.register_backward
def _(grad, tracks, gains):
    return {"tracks": lambda: gains[:, None] * grad, "gains": lambda: (tracks * grad).sum(1)}


@op.register_samples
def _(make):
    yield Sample(make(2, 8), make(2))
    yield Sample(make(3, 5), make(3))


def shown() -> tuple[Tensor, Tensor]:
    first = op(torch.ones(2, 4), torch.ones(2))
    right = first.clone()
    op(torch.ones(2, 4), 5 * torch.ones(2))
    return first, right
