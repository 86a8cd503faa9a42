"""Rows of an inspection: a node of the graph, and the values that it saved. They hold no tensors and no nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Role = Literal["input", "output", "saved", "attribute", "leaf"]
State = Literal["held", "freed", "packed by hooks", "modified in place", "not readable"]


@dataclass(frozen=True, slots=True)
class InspectedTensor:
    """A tensor that a node saved.

    Attributes:
        name: of the input or output; `xs[0]` in a list, `saved_tensors[0]` if it was saved by position.
        role: "input" or "output" of a custom op; "saved" by position or by a built-in node; "attribute" of a ctx;
            "leaf" for the tensor into which a node accumulates gradients.
        state: "held"; otherwise why the tensor was not read, and shape, dtype, device and bytes are unknown.
        shape: of the tensor, a symbolic size by its name; None if unknown.
        dtype: as above.
        device: as above.
        bytes: of its elements, or None if unknown.
        held_bytes: of the memory that the graph holds because of this tensor: its whole storage if no tensor before it
            has the same one; 0 if the storage is that of a leaf, which is alive anyway.
        is_leaf: its storage is that of a leaf of this graph that requires a gradient, such as a parameter.
        same_as: index of the node and name of the first saved tensor with the same storage, or None.
    """

    name: str
    role: Role
    state: State = "held"
    shape: tuple[int | str, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    bytes: int | None = None
    held_bytes: int = 0
    is_leaf: bool = False
    same_as: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class InspectedValue:
    """A value that a node saved and that is not a tensor.

    Attributes:
        name: of the input or attribute.
        text: its repr, cut to 80 characters.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """A node of the graph.

    Attributes:
        index: its place in the order of a backward.
        name: what `grad_fn.name()` returns.
        op: the qualified name of the custom op that recorded it, or None.
        declared: file and line of the declaration of that op, or None.
        next: the indices of the nodes to which it passes gradients, in the order of its edges.
        tensors: the tensors that it saved.
        values: the other values that it saved.
    """

    index: int
    name: str
    op: str | None
    declared: str | None
    next: tuple[int, ...]
    tensors: tuple[InspectedTensor, ...]
    values: tuple[InspectedValue, ...]

    @property
    def title(self) -> str:
        """Return the name of the op for a custom op, and that of the node for others."""
        return self.op or self.name.removeprefix("torch::autograd::")

    @property
    def held_bytes(self) -> int:
        """Return the bytes of memory that the graph holds because of this node."""
        return sum(tensor.held_bytes for tensor in self.tensors)
