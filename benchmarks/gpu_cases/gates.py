"""Cases of swiglu and geglu at sizes made for GPUs."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from gallery.gated_units import geglu, swiglu
from gpu_case import GpuCase
from layers import LLAMA_8B, LLAMA_70B, sized, title
from torch import Tensor

UNITS = {"swiglu": (swiglu, F.silu), "geglu": (geglu, partial(F.gelu, approximate="tanh"))}
SIZES = (
    ("swiglu", LLAMA_8B, 16384, torch.bfloat16),
    ("swiglu", LLAMA_70B, 8192, torch.bfloat16),
    ("swiglu", LLAMA_8B, 8192, torch.float32),
    ("geglu", LLAMA_8B, 16384, torch.bfloat16),
)


def gated(activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    """Return the unit as a model computes it without the op."""
    return activation(gate) * up


def rounded_once(activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    """The same in float32, rounded once, as the op does it: what is to be compiled."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    return (activation(gate.to(wide)) * up).to(gate.dtype)


def liger(gate: Tensor, up: Tensor) -> Tensor:
    """Liger-Kernel's swiglu, where it is installed."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate, up)


def arguments(device: str, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """The gate and the other half."""
    return tuple(torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(2))


def cases(is_tiny: bool) -> Iterator[GpuCase]:
    """The gated units of the layers above."""
    for unit, layer, tokens, dtype in SIZES:
        op, activation = UNITS[unit]
        layer, tokens = sized(layer, tokens, is_tiny)
        size = tokens * layer.inner * dtype.itemsize
        peers = {"two operators": partial(gated, activation), **({"Liger-Kernel": liger} if unit == "swiglu" else {})}
        make = partial(arguments, dtype=dtype, shape=(tokens, layer.inner))
        yield GpuCase(
            f"{unit}, {title(layer, tokens, dtype)}", op, partial(rounded_once, activation), make, peers,
            family="gate", bytes_moved=3 * size, backward_bytes=5 * size,
        )  # fmt: skip
