"""What an op of the gallery is measured on: sizes of a real model, and what people would call instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One op on one size.

    Attributes:
        name: what the sizes are those of: "Llama 7B, 2048 tokens, bfloat16".
        op: called with the arguments; what is measured.
        reference: the same in PyTorch operations; measured in eager mode and under `torch.compile`.
        arguments: takes a device and makes the arguments; backward is measured where one of them requires a gradient.
        peers: by name, what PyTorch or another library offers for it, called with the same arguments.
        target: by name of a peer ("eager", "compiled" or one of `peers`) and mode ("forward", "backward", "memory"),
            the ratio op / peer that must not be passed: `{("eager", "forward"): 1 / 1.5}`.
        determined: what of a gradient is the same in all correct callables, where ties may share it in several ways; by
            default the gradient.
        bytes_moved: what forward reads and writes at least; where it is given, the share of a copy's bandwidth that the
            op reaches is measured.
    """

    name: str
    op: Callable[..., Any]
    reference: Callable[..., Any]
    arguments: Callable[[str], tuple[Any, ...]]
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    target: Mapping[tuple[str, str], float] = field(default_factory=dict)
    determined: Callable[[Any], Any] = lambda gradient: gradient
    bytes_moved: int | None = None
