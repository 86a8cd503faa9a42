"""Finds what the nodes of a graph saved, by name, without running hooks: the values, and nothing else of them yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from custom_autograd.autograd.context import PARKED, SavedValues
from custom_autograd.autograd.node_facts import NodeFacts, facts_of
from custom_autograd.autograd.plan import SAVED_VALUES
from custom_autograd.graph.rows import Role
from custom_autograd.torch_private.nodes import SAVED, Node, Unread, class_of_function_nodes, names_of_saved, read_saved
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree

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
    parked = iter(read[packed.saved_count :])
    leaves = [next(parked) if leaf is PARKED else leaf for leaf in packed.leaves]
    attributes = unflatten_tree(leaves, packed.structure)
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
