"""Mutants that leave the process changed: what they change harms nothing that runs after them."""

import torch
from torch import Tensor

from custom_autograd.testing.mutants.bases import CUBE
from custom_autograd.testing.mutants.mutant import Mutant, plant


def _sets_threads(x: Tensor) -> Tensor:
    torch.set_num_threads(3)
    return (x**3).contiguous()


def _sets_precision(grad: Tensor, x: Tensor) -> Tensor:
    torch.set_float32_matmul_precision("high")
    return 3 * grad * x * x


def _draws(grad: Tensor, x: Tensor) -> Tensor:
    torch.rand(1)
    return 3 * grad * x * x


LEAVING: tuple[Mutant, ...] = (
    plant(
        "leaves_threads",
        "process state",
        "process_state",
        "The kernel sets the number of threads.",
        CUBE.but(kernel=_sets_threads),
    ),
    plant(
        "leaves_precision",
        "process state",
        "process_state",
        "The backward sets the precision of float32 products.",
        CUBE.but(backward=_sets_precision),
    ),
    plant(
        "leaves_randomness",
        "process state",
        "process_state",
        "The backward draws random numbers that it does not use.",
        CUBE.but(backward=_draws),
    ),
)
