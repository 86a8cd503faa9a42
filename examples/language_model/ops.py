"""The three operations of the model that come in two makes: plain PyTorch, and the gallery's custom ops."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

GALLERY = Path(__file__).resolve().parents[1] / "gallery"
EPS = 1e-6  # of the normalisation


@dataclass(frozen=True)
class Ops:
    """What the model calls.

    Attributes:
        rms_norm: x (..., features) and weight (features,) -> like x.
        rope: x (batch, heads, length, features), cosines and sines (length, features / 2) -> like x.
        cross_entropy: logits (rows, classes) and targets (rows,) int64 -> the mean loss in nats, a scalar.
    """

    rms_norm: Callable[[Tensor, Tensor], Tensor]
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    cross_entropy: Callable[[Tensor, Tensor], Tensor]


def plain_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding: each pair (x1, x2) of features turns by an angle that grows with its position."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def plain_ops() -> Ops:
    """The reference: PyTorch's own functions and their gradients."""
    return Ops(
        rms_norm=lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
        rope=plain_rope,
        cross_entropy=F.cross_entropy,
    )


def load(name: str) -> ModuleType:
    """A module of the gallery, from its file; it may import the files beside it."""
    if name in sys.modules:
        return sys.modules[name]
    if str(GALLERY) not in sys.path:
        sys.path.append(str(GALLERY))
    path = GALLERY / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gallery_ops() -> Ops:
    """The same three as custom ops, with kernels and gradients of their own."""
    rms_norm = load("rms_norm").rms_norm
    rope = load("rope").rope
    cross_entropy = load("softmax_cross_entropy").softmax_cross_entropy
    return Ops(
        rms_norm=lambda x, weight: rms_norm(x, weight, EPS),
        rope=rope,
        cross_entropy=cross_entropy,
    )
