"""An inspection as a table in text, and as the values of a JSON document."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from custom_autograd.graph.rows import InspectedNode, InspectedTensor
from custom_autograd.rendering.tables import align

COLUMNS = ("node", "op", "declared", "saved", "role", "shape", "dtype", "device", "bytes", "held", "note")


def format_inspection(nodes: Sequence[InspectedNode], by_op: Mapping[str, int]) -> str:
    """Return a table of nodes and what they saved, a table of the bytes by op, and the bytes in all."""
    held = [("op", "nodes", "held")]
    held += [(op, str(sum(node.title == op for node in nodes)), str(size)) for op, size in by_op.items()]
    rows = [row for node in nodes for row in rows_of(node)]
    return "\n\n".join([align([COLUMNS, *rows]), align(held), format_totals(nodes)])


def format_totals(nodes: Sequence[InspectedNode]) -> str:
    """Return a sentence on the bytes that the graph holds, and one on what is not known."""
    total, unread = sum(node.held_bytes for node in nodes), unknown_in(nodes)
    text = f"The graph holds {_count(total, 'byte')} for its backward; leaves do not count."
    return f"{text} The size of {_count(len(unread), 'saved tensor')} is unknown." if unread else text


def unknown_in(nodes: Sequence[InspectedNode]) -> list[InspectedTensor]:
    """Return the saved tensors whose size is unknown, and that are not freed."""
    tensors = [tensor for node in nodes for tensor in node.tensors]
    return [tensor for tensor in tensors if tensor.bytes is None and tensor.state != "freed"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rows_of(node: InspectedNode) -> list[tuple[str, ...]]:
    """Return the rows of a node, which is named in the first of them."""
    cells = [cells_of(tensor) for tensor in node.tensors]
    cells += [(value.name, "value", *[""] * 5, value.text) for value in node.values]
    first, *others = cells or [("",) * (len(COLUMNS) - 3)]
    return [(str(node.index), node.title, node.declared or "", *first), *(("", "", "", *row) for row in others)]


def cells_of(tensor: InspectedTensor) -> tuple[str, ...]:
    """Return the cells of a saved tensor, from its name to the note."""
    if tensor.state != "held":
        return (tensor.name, tensor.role, *[""] * 5, tensor.state)
    return (
        tensor.name,
        tensor.role,
        text_of_shape(tensor),
        name_of_dtype(tensor),
        str(tensor.device),
        "" if tensor.bytes is None else str(tensor.bytes),
        str(tensor.held_bytes),
        note_of(tensor),
    )


def note_of(tensor: InspectedTensor) -> str:
    """Return why a tensor is not counted, in words."""
    if tensor.is_leaf:
        return "leaf"
    return "" if tensor.same_as is None else f"same memory as {tensor.same_as[1]} of node {tensor.same_as[0]}"


def name_of_dtype(tensor: InspectedTensor) -> str:
    """Return the dtype as a user writes it, without "torch."."""
    return "" if tensor.dtype is None else str(tensor.dtype).removeprefix("torch.")


def text_of_shape(tensor: InspectedTensor) -> str:
    """Return the shape as a tuple, or nothing for a tensor without one."""
    if tensor.shape is None:
        return ""
    return f"({', '.join(map(str, tensor.shape))}{',' if len(tensor.shape) == 1 else ''})"


def fields_of(node: InspectedNode) -> dict[str, Any]:
    """Return the fields of a node as values of a JSON document (Any)."""
    return {
        "index": node.index,
        "name": node.name,
        "op": node.op,
        "declared": node.declared,
        "next": list(node.next),
        "held_bytes": node.held_bytes,
        "tensors": [_fields_of_tensor(tensor) for tensor in node.tensors],
        "values": [dataclasses.asdict(value) for value in node.values],
    }


def _fields_of_tensor(tensor: InspectedTensor) -> dict[str, Any]:
    return {
        **dataclasses.asdict(tensor),
        "shape": None if tensor.shape is None else list(tensor.shape),
        "dtype": name_of_dtype(tensor) or None,
        "device": None if tensor.device is None else str(tensor.device),
        "same_as": None if tensor.same_as is None else {"node": tensor.same_as[0], "name": tensor.same_as[1]},
    }
