"""The eccentric anomaly E of an orbit, E - e sin E = M, by Newton's method to a tolerance.

The gradient follows from the implicit function theorem and does not see the iterations.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::kepler_equation", shapes="mean: *b, eccentricity: *b -> output: *b")
def op(mean: Tensor, eccentricity: Tensor) -> Tensor:
    anomaly, e = (np.array(t.to(torch.float64).numpy(), order="C") for t in (mean, eccentricity))
    x = anomaly + e * np.sin(anomaly)
    for _ in range(50):
        step = (x - e * np.sin(x) - anomaly) / (1 - e * np.cos(x))
        x = x - step
        if np.all(np.abs(step) < 1e-14):
            break
    return torch.from_numpy(np.asarray(x)).to(mean.dtype)


@op.register_backward
def _(grad, eccentricity, output):
    scaled = grad / (1 - eccentricity * torch.cos(output))
    return {"mean": scaled, "eccentricity": lambda: scaled * torch.sin(output)}


@op.register_samples
def _(make):
    yield Sample(make(6, low=0.0, high=6.0), make(6, low=0.0, high=0.7))
    yield Sample(make(2, 3, low=-3.0, high=3.0), make(2, 3, low=0.1, high=0.5))
