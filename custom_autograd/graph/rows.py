"""Rows of an inspection, and how they are shown: as text, JSON, HTML and a drawing. They hold no tensors."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.rendering.pages import render
from custom_autograd.rendering.tables import align

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


HEAD = """digraph graph_inspection {
  node [shape=box, style="rounded,filled", fillcolor="#eceff2", color="#57606a", fontname="Helvetica", fontsize=10]
  edge [color="#57606a"]"""
OF_OP, OF_LEAF = 'fillcolor="#dff3e4"', 'fillcolor="#dbe9fb"'


def format_dot(nodes: Sequence[InspectedNode]) -> str:
    """Return a directed graph: a box for each node, with what it saved, and an arrow for each edge."""
    boxes = [f"  n{node.index} [label={_quoted(_lines_of(node))}{_colour_of(node)}]" for node in nodes]
    arrows = [f"  n{node.index} -> n{follower}" for node in nodes for follower in node.next]
    return "\n".join([HEAD, *boxes, *arrows, "}"]) + "\n"


def _colour_of(node: InspectedNode) -> str:
    if node.op is not None:
        return f", {OF_OP}"
    return f", {OF_LEAF}" if any(tensor.role == "leaf" for tensor in node.tensors) else ""


def _lines_of(node: InspectedNode) -> list[str]:
    lines = [node.title, *([node.declared] if node.declared else [])]
    lines += [_line_of(tensor) for tensor in node.tensors]
    return lines + [f"{value.name} = {value.text}" for value in node.values]


def _line_of(tensor: InspectedTensor) -> str:
    if tensor.state != "held":
        return f"{tensor.name}: {tensor.state}"
    size = "" if tensor.bytes is None else f", {tensor.bytes} bytes"
    return f"{tensor.name}: {name_of_dtype(tensor)} {text_of_shape(tensor)}{size}"


def _quoted(lines: Sequence[str]) -> str:
    r"""Return lines as a string of Graphviz: each ends with \l, which aligns it on the left."""
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "".join(f"{line}\\l" for line in escaped) + '"'


def draw(source: str) -> str:
    """Return the SVG image that `dot` draws."""
    program = shutil.which("dot")
    if program is None:
        raise CustomAutogradError(
            "custom_autograd.inspect",
            "cannot draw the graph: the program 'dot' is not installed",
            do="install Graphviz (apt-get install graphviz, brew install graphviz), or use to_dot()",
        )
    finished = subprocess.run([program, "-Tsvg"], input=source, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        found = finished.stderr.strip() or f"exit status {finished.returncode}"
        problem = "the program 'dot' cannot draw the graph"
        do = "use to_dot(), and draw it with another program"
        raise CustomAutogradError("custom_autograd.inspect", problem, found=found, do=do)
    return finished.stdout


# An inspection as one HTML page, and as a fragment for notebooks.
#
# templates/inspection_page.html      the page: style within, nothing is loaded from elsewhere
# templates/inspection_fragment.html  the tables, in a notebook
# templates/inspection_tables.html    what they share


def format_page(nodes: Sequence[InspectedNode], by_op: Mapping[str, int], totals: str) -> str:
    """Return the whole page; every text in it is escaped."""
    return render("custom_autograd.graph", "inspection_page.html", **_values(nodes, by_op, totals))


def format_fragment(nodes: Sequence[InspectedNode], by_op: Mapping[str, int], totals: str) -> str:
    """Return the tables without a page around them."""
    return render("custom_autograd.graph", "inspection_fragment.html", **_values(nodes, by_op, totals))


def _values(nodes: Sequence[InspectedNode], by_op: Mapping[str, int], totals: str) -> dict[str, object]:
    return {
        "columns": COLUMNS,
        "rows": [row for node in nodes for row in rows_of(node)],
        "by_op": [(op, sum(node.title == op for node in nodes), size) for op, size in by_op.items()],
        "totals": totals,
        "nodes": len(nodes),
    }
