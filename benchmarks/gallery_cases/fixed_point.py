"""What fixed_point is measured on."""

from collections.abc import Iterator

import torch
from cases import Case
from gallery.fixed_point import fixed_point  # examples/ is on the path
from torch import Tensor

LAYER = {"batch": 256, "features": 512}
ITERATIONS = 24  # for a norm of 1 / 2: a change below 2^-24


def reference(weight: Tensor, drive: Tensor) -> Tensor:
    """As many iterations as it takes, without a look at them, and autograd through all."""
    z = torch.tanh(drive)
    for _ in range(ITERATIONS):
        z = torch.tanh(z @ weight.mT + drive)
    return z


def arguments(device: str) -> tuple[Tensor, Tensor]:
    """A weight of norm 1 / 2, and what drives it."""
    batch, features = LAYER.values()
    weight = torch.randn(features, features, device=device)
    weight = weight / (2 * torch.linalg.matrix_norm(weight, 2))
    return weight.requires_grad_(), torch.randn(batch, features, device=device).requires_grad_()


def cases() -> Iterator[Case]:
    """One equilibrium layer. The forward is the reference's, so only backward and memory have a target."""
    target = {("eager", "backward"): 1 / 1.5, ("eager", "memory"): 0.5}
    yield Case("equilibrium layer, batch 256, 512 features, float32", fixed_point, reference, arguments, {}, target)
