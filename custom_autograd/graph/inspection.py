"""`inspect`: what a graph saved for its backward, by op and by name, and the ways to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from custom_autograd.core.messages import show
from custom_autograd.execution.context import PARKED, SavedValues
from custom_autograd.execution.node_facts import NodeFacts, facts_of
from custom_autograd.execution.plan import SAVED_VALUES
from custom_autograd.graph import rows
from custom_autograd.graph.rows import InspectedNode, InspectedTensor, InspectedValue, Role
from custom_autograd.graph.walk import Recorded, in_order_of_backward, roots_of
from custom_autograd.torch_private.nodes import (
    SAVED,
    Node,
    Unread,
    class_of_function_nodes,
    names_of_saved,
    next_nodes,
    read_saved,
)
from custom_autograd.torch_private.storages import bytes_of, shape_of, sizes_of_storages
from custom_autograd.torch_private.trees import flatten_tree

SAVED_TENSORS = "saved_tensors"
LEAF = "variable"


@dataclass(frozen=True, slots=True)
class Found:
    """A value that a node holds.

    Attributes:
        name: of the input, output or attribute.
        role: that of an `InspectedTensor`.
        value: a tensor, an `Unread` in place of one, or anything else (Any).
        is_tensor: it is a tensor, also where it was not read.
    """

    name: str
    role: Role
    value: Any
    is_tensor: bool


def find_saved(nodes: Sequence[Node]) -> list[list[Found]]:
    """Return what each node holds: nothing for what it could have saved and did not."""
    requests = [[(node, name) for name in _attributes_of(node)] for node in nodes]
    values = iter(read_saved([request for row in requests for request in row]))
    rows = zip(nodes, requests, strict=True)
    return [list(_found(node, {name: next(values) for _, name in row})) for node, row in rows]


def _attributes_of(node: Node) -> list[str]:
    """Return the attributes of a node that hold saved tensors."""
    if hasattr(type(node), LEAF):
        return [LEAF]
    if class_of_function_nodes(node) is not None:
        return [SAVED_TENSORS]
    return [SAVED + name for name in names_of_saved(node)]


def _found(node: Node, values: dict[str, Any]) -> Iterator[Found]:
    if LEAF in values:
        return _rows(LEAF, "leaf", values[LEAF], is_tensor=True)
    if class_of_function_nodes(node) is None:
        return _of_built_in(node, values)
    facts = facts_of(node)
    if facts is None:
        return _of_context(values[SAVED_TENSORS], vars(node))
    if facts.has_context:
        return _of_drop_in(node, values[SAVED_TENSORS])
    return _by_name(facts, node, values[SAVED_TENSORS])


def _of_built_in(node: Node, values: dict[str, Any]) -> Iterator[Found]:
    for name, is_tensor in names_of_saved(node).items():
        yield from _rows(name, "saved", values[SAVED + name], is_tensor=is_tensor)


def _by_name(facts: NodeFacts, node: Node, tensors: Any) -> Iterator[Found]:
    """Yield what the node of an op saved by name."""
    if isinstance(tensors, Unread):
        by_name: dict[str, Any] = dict.fromkeys([one.name for one in facts.saved], tensors)
    else:
        by_name = facts.by_name(node, tensors)
    for one in facts.saved:
        yield from _rows(one.name, "output" if one.is_output else "input", by_name[one.name], is_tensor=True)
    for name in facts.kept:
        yield from _rows(name, "input", getattr(node, f"kept_{name}"), is_tensor=False)


def _of_drop_in(node: Node, tensors: Any) -> Iterator[Found]:
    """Yield what the node of an op saved whose rules have a ctx: tensors that were attributes were saved, too."""
    packed: SavedValues | None = getattr(node, SAVED_VALUES, None)
    if packed is None:
        return _of_context(tensors, vars(node))
    if not packed.leaves:
        return _of_context(tensors, packed.attributes)
    read = tensors if isinstance(tensors, Sequence) else [tensors] * (packed.saved_count + packed.leaves.count(PARKED))
    attributes = {**packed.attributes, **packed.parted(read[packed.saved_count :])}
    return _of_context(tensors if isinstance(tensors, Unread) else read[: packed.saved_count], attributes)


def _of_context(tensors: Any, attributes: Mapping[str, Any]) -> Iterator[Found]:
    """Yield what the node of a Function saved by position, and the attributes of its ctx."""
    yield from _rows(SAVED_TENSORS, "saved", tensors, is_tensor=True)
    for name, value in attributes.items():
        if name.startswith("_"):
            continue
        tensors = [leaf for leaf in flatten_tree(value)[0] if isinstance(leaf, (Tensor, Unread))]
        is_one = isinstance(value, (Tensor, Unread))
        yield from _rows(name, "attribute", tensors if tensors and not is_one else value, is_tensor=bool(tensors))


def _rows(name: str, role: Role, value: Any, *, is_tensor: bool) -> Iterator[Found]:
    """Yield a row for a value, or for each element of a list of tensors; none for a tensor that was not saved."""
    if not is_tensor:
        yield Found(name, role, value, False)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from _rows(f"{name}[{index}]", role, one, is_tensor=True)
    elif value is not None:
        yield Found(name, role, value, True)


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
        return len(rows.unknown_in(self.nodes))

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
            "nodes": [rows.fields_of(node) for node in self.nodes],
        }

    def to_html(self, path: str | Path | None = None) -> str:
        """Return one page that needs nothing else, in light and dark.

        Args:
            path: a file to write it to, or None.
        """
        text = rows.format_page(self.nodes, self.bytes_by_op(), rows.format_totals(self.nodes))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        """Return the tables, as a notebook shows them."""
        return rows.format_fragment(self.nodes, self.bytes_by_op(), rows.format_totals(self.nodes))

    def to_dot(self) -> str:
        """Return the graph in the language of Graphviz, with what each node saved."""
        return rows.format_dot(self.nodes)

    def to_svg(self) -> str:
        """Return the graph as an SVG image, drawn by the program `dot` of Graphviz.

        Raises:
            CustomAutogradError: if `dot` is not installed, or fails.
        """
        return rows.draw(self.to_dot())

    def __str__(self) -> str:
        """Return a table of nodes and what they saved, and the bytes by op and in all."""
        return rows.format_inspection(self.nodes, self.bytes_by_op())


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
