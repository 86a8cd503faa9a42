"""What swiglu and geglu are measured on."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.gated_units import geglu, swiglu  # examples/ is on the path
from torch import Tensor

LLAMA = {"tokens": 1024, "features": 11008}

TARGET = {
    ("eager", "forward"): 1 / 1.5,
    ("compiled", "forward"): 1.0,
    ("eager", "backward"): 1 / 1.5,
    ("compiled", "backward"): 1.0,
}


def gated(activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    """What a model calls without the op."""
    return activation(gate) * up


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The gate and the other half of one layer."""
    shape = LLAMA["tokens"], LLAMA["features"]
    return tuple(torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(2))


def cases() -> Iterator[Case]:
    """A layer of Llama 7B, in the dtypes of training."""
    units = {"SwiGLU": (swiglu, F.silu), "GEGLU": (geglu, partial(F.gelu, approximate="tanh"))}
    for name, (op, activation) in units.items():
        for dtype in (torch.float32, torch.bfloat16):
            yield Case(
                f"{name} of Llama 7B, 1024 tokens, {str(dtype).removeprefix('torch.')}",
                op,
                partial(gated, activation),
                partial(arguments, dtype=dtype),
                target=TARGET,
            )
