"""`inspect`: what a graph saved for its backward, by op and by name, and the ways to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from custom_autograd.autograd.node_facts import facts_of
from custom_autograd.core.messages import show
from custom_autograd.graph import dot, page, table
from custom_autograd.graph.rows import InspectedNode, InspectedTensor, InspectedValue
from custom_autograd.graph.saved import Found, find_saved
from custom_autograd.graph.walk import Recorded, in_order_of_backward, roots_of
from custom_autograd.torch_private.nodes import Node, Unread, next_nodes
from custom_autograd.torch_private.storages import bytes_of, shape_of, sizes_of_storages

JSON_FORMAT = 1
"""Raised when a key of the JSON document changes its meaning or goes away; new keys do not raise it."""


@dataclass(frozen=True, slots=True)
class GraphInspection:
    """What a graph saved for its backward; it holds neither tensors nor nodes.

    Attributes:
        nodes: one row per node, in the order of a backward.
    """

    nodes: tuple[InspectedNode, ...]

    @property
    def held_bytes(self) -> int:
        """Return the bytes of memory that the graph holds: each storage once, and those of leaves not at all."""
        return sum(node.held_bytes for node in self.nodes)

    @property
    def unread(self) -> int:
        """Return how many saved tensors have an unknown size: those that could not be read, or are symbolic."""
        return len(table.unknown_in(self.nodes))

    def bytes_by_op(self) -> dict[str, int]:
        """Return the bytes that the nodes of each op hold, in the order of the nodes; other nodes by their names."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.title] = found.get(node.title, 0) + node.held_bytes
        return found

    def to_json(self) -> dict[str, Any]:
        """Return a dict that `json.dumps` takes.

        Returns:
            `format` (1; raised when a key changes its meaning or goes away), `held_bytes`, `unread`, `bytes_by_op`, and
            `nodes`: the fields of `InspectedNode` with those of `InspectedTensor` and `InspectedValue`, where a dtype
            is "float32" and a device "cuda:0" (Any: values of a JSON document).
        """
        return {
            "format": JSON_FORMAT,
            "held_bytes": self.held_bytes,
            "unread": self.unread,
            "bytes_by_op": self.bytes_by_op(),
            "nodes": [table.fields_of(node) for node in self.nodes],
        }

    def to_html(self, path: str | Path | None = None) -> str:
        """Return one page that needs nothing else, in light and dark.

        Args:
            path: a file to write it to, or None.
        """
        text = page.format_page(self.nodes, self.bytes_by_op(), table.format_totals(self.nodes))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        """Return the tables, as a notebook shows them."""
        return page.format_fragment(self.nodes, self.bytes_by_op(), table.format_totals(self.nodes))

    def to_dot(self) -> str:
        """Return the graph in the language of Graphviz, with what each node saved."""
        return dot.format_dot(self.nodes)

    def to_svg(self) -> str:
        """Return the graph as an SVG image, drawn by the program `dot` of Graphviz.

        Raises:
            CustomAutogradError: if `dot` is not installed, or fails.
        """
        return dot.draw(self.to_dot())

    def __str__(self) -> str:
        """Return a table of nodes and what they saved, and the bytes by op and in all."""
        return table.format_inspection(self.nodes, self.bytes_by_op())


def inspect(recorded: Recorded | Sequence[Recorded]) -> GraphInspection:
    """Return what the graph of a tensor saved for its backward, by op and by name.

    The graph is as before afterwards: nothing is freed or kept alive, and no hook that is written in Python runs. A
    saved tensor that hooks have packed has an unknown size: `saved_tensors_hooks`, checkpointing, offloading.

    Args:
        recorded: a tensor with `grad_fn`, a `torch.autograd.graph.GradientEdge`, a node, or a list of those.

    Returns:
        One row per node, in the order of a backward; `str()` gives a table.

    Raises:
        CustomAutogradError: if nothing recorded the tensor.

    Example:
        >>> import torch
        >>> from custom_autograd import custom_op, inspect
        >>> cube = custom_op("inspect::cube", lambda x: x**3, schema="(Tensor x) -> Tensor")
        >>> _ = cube.register_backward(lambda grad, x: 3 * grad * x**2)
        >>> y = cube(torch.ones(4, requires_grad=True).exp()).sum()
        >>> node = inspect(y).nodes[1]
        >>> node.op, node.tensors[0].name, node.tensors[0].bytes
        ('inspect::cube', 'x', 16)
    """
    nodes = in_order_of_backward(roots_of(recorded))
    saved = find_saved(nodes)
    indices = {id(node): index for index, node in enumerate(nodes)}
    memory = Memory(saved)
    return GraphInspection(tuple(_row(index, node, saved[index], indices, memory) for index, node in enumerate(nodes)))


def _row(index: int, node: Node, saved: list[Found], indices: dict[int, int], memory: Memory) -> InspectedNode:
    facts = facts_of(node)
    return InspectedNode(
        index=index,
        name=node.name(),
        op=None if facts is None else facts.record.name,
        declared=None if facts is None else facts.record.declaration.location or None,
        next=tuple(indices[id(follower)] for follower, _ in next_nodes(node)),
        tensors=tuple(memory.row(index, one) for one in saved if one.is_tensor),
        values=tuple(InspectedValue(one.name, show(one.value)) for one in saved if not one.is_tensor),
    )


class Memory:
    """The storages that a graph holds, each of which counts once."""

    def __init__(self, saved: Sequence[Sequence[Found]]) -> None:
        rows = [one for row in saved for one in row if isinstance(one.value, Tensor)]
        leaves = [one.value for one in rows if one.role == "leaf" or (one.value.is_leaf and one.value.requires_grad)]
        self._of_leaves = {storage for leaf in leaves for storage in sizes_of_storages(leaf)}
        self._first: dict[int, tuple[int, str]] = {}

    def row(self, index: int, found: Found) -> InspectedTensor:
        """Return the row of a saved tensor of a node."""
        tensor = found.value
        if isinstance(tensor, Unread):
            return InspectedTensor(found.name, found.role, tensor.value)
        sizes = sizes_of_storages(tensor)
        same_as = next((self._first[storage] for storage in sizes if storage in self._first), None)
        held = sum(size for one, size in sizes.items() if one not in self._first and one not in self._of_leaves)
        size = bytes_of(tensor)
        for storage in sizes:
            self._first.setdefault(storage, (index, found.name))
        return InspectedTensor(
            name=found.name,
            role=found.role,
            shape=shape_of(tensor),
            dtype=tensor.dtype,
            device=tensor.device,
            bytes=size,
            held_bytes=held if sizes else size or 0,  # an opaque tensor has no storage to compare
            is_leaf=bool(sizes) and self._of_leaves.issuperset(sizes),
            same_as=same_as,
        )
