"""An inspection in the language of Graphviz, and drawn by its program `dot`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.graph.rows import InspectedNode, InspectedTensor
from custom_autograd.graph.table import name_of_dtype, text_of_shape

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
    """Return the SVG image that `dot` draws.

    Raises:
        CustomAutogradError: if `dot` is not installed, or fails.
    """
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
