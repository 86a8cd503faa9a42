"""Mutants that leave the process changed: what they change harms nothing that runs after them."""

import random

import numpy as np
import torch
from torch import Tensor

from corpus.bases import CUBE
from corpus.mutant import Mutant, plant


def _sets_threads(x: Tensor) -> Tensor:
    torch.set_num_threads(3)
    return (x**3).contiguous()


def _sets_precision(grad: Tensor, x: Tensor) -> Tensor:
    torch.set_float32_matmul_precision("high")
    return 3 * grad * x * x


def _draws(grad: Tensor, x: Tensor) -> Tensor:
    torch.rand(1)
    return 3 * grad * x * x


def _seeds_python(x: Tensor) -> Tensor:
    random.seed(0)
    return (x**3).contiguous()


def _draws_from_numpy(grad: Tensor, x: Tensor) -> Tensor:
    np.random.rand()
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
    plant(
        "leaves_python_randomness",
        "process state",
        "process_state",
        "The kernel seeds Python's random numbers.",
        CUBE.but(kernel=_seeds_python),
    ),
    plant(
        "leaves_numpy_randomness",
        "process state",
        "process_state",
        "The backward draws a number from NumPy's global generator.",
        CUBE.but(backward=_draws_from_numpy),
    ),
)
