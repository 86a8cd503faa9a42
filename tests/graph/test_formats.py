"""An inspection as text, JSON, HTML and an image: what is pinned is read by people and by programs."""

# ruff: noqa: E501 - a table is as wide as it is

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree

import pytest
import torch
from expecttest import assert_expected_inline
from graph.recorded_ops import Doubled, leaf, norm

from custom_autograd import CustomAutogradError, inspect


def example():
    """A graph with an op, a duplicate, leaves and values."""
    x = leaf(2, 3).exp()
    return inspect((norm(x, leaf(3), 1e-5) * x).sum())


def stable(text):
    return re.sub(r"recorded_ops.py:\d+", "recorded_ops.py:00", text)


def test_the_table_shows_nodes_in_order_then_bytes_by_op_and_in_all():
    assert_expected_inline(
        stable(str(example())),
        """\
node  op               declared            saved           role    shape   dtype    device  bytes  held  note
----  ---------------  ------------------  --------------  ------  ------  -------  ------  -----  ----  ------------------------------
0     SumBackward0                         self_sym_sizes  value                                         (2, 3)
1     MulBackward0                         other           saved   (2, 3)  float32  cpu     24     24
                                           self            saved   (2, 3)  float32  cpu     24     24
2     inspected::norm  recorded_ops.py:00  x               input   (2, 3)  float32  cpu     24     0     same memory as other of node 1
                                           weight          input   (3,)    float32  cpu     12     0     leaf
                                           rstd            output  (2, 1)  float32  cpu     8      8
                                           eps             value                                         1e-05
3     AccumulateGrad                       variable        leaf    (3,)    float32  cpu     12     0     leaf
4     ExpBackward0                         result          saved   (2, 3)  float32  cpu     24     0     same memory as other of node 1
5     AccumulateGrad                       variable        leaf    (2, 3)  float32  cpu     24     0     leaf

op               nodes  held
---------------  -----  ----
SumBackward0     1      0
MulBackward0     1      48
inspected::norm  1      8
AccumulateGrad   2      0
ExpBackward0     1      0

The graph holds 56 bytes for its backward; leaves do not count.""",
    )


def test_the_table_says_what_is_not_known():
    x = leaf(3) * 1
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        y = x.sin()

    assert_expected_inline(
        str(inspect(y)),
        """\
node  op              declared  saved     role   shape  dtype    device  bytes  held  note
----  --------------  --------  --------  -----  -----  -------  ------  -----  ----  ---------------
0     SinBackward0              self      saved                                       packed by hooks
1     MulBackward0              other     saved  ()     int64    cpu     8      8
2     AccumulateGrad            variable  leaf   (3,)   float32  cpu     12     0     leaf

op              nodes  held
--------------  -----  ----
SinBackward0    1      0
MulBackward0    1      8
AccumulateGrad  1      0

The graph holds 8 bytes for its backward; leaves do not count. The size of 1 saved tensor is unknown.""",
    )


def on_lines(graph):
    """JSON with a line for the graph, for each node, and for each tensor and value that a node holds."""
    lines = [json.dumps({**graph, "nodes": "below"})]
    for node in graph["nodes"]:
        lines.append(" " + json.dumps({**node, "tensors": "below", "values": "below"}))
        lines += ["  " + json.dumps(held) for held in (*node["tensors"], *node["values"])]
    return "\n".join(lines)


def test_json_is_of_a_format_that_programs_can_read():
    assert_expected_inline(
        stable(on_lines(example().to_json())),
        """\
{"format": 1, "held_bytes": 56, "unread": 0, "bytes_by_op": {"SumBackward0": 0, "MulBackward0": 48, "inspected::norm": 8, "AccumulateGrad": 0, "ExpBackward0": 0}, "nodes": "below"}
 {"index": 0, "name": "SumBackward0", "op": null, "declared": null, "next": [1], "held_bytes": 0, "tensors": "below", "values": "below"}
  {"name": "self_sym_sizes", "text": "(2, 3)"}
 {"index": 1, "name": "MulBackward0", "op": null, "declared": null, "next": [2, 4], "held_bytes": 48, "tensors": "below", "values": "below"}
  {"name": "other", "role": "saved", "state": "held", "shape": [2, 3], "dtype": "float32", "device": "cpu", "bytes": 24, "held_bytes": 24, "is_leaf": false, "same_as": null}
  {"name": "self", "role": "saved", "state": "held", "shape": [2, 3], "dtype": "float32", "device": "cpu", "bytes": 24, "held_bytes": 24, "is_leaf": false, "same_as": null}
 {"index": 2, "name": "inspected::normBackward", "op": "inspected::norm", "declared": "recorded_ops.py:00", "next": [4, 3], "held_bytes": 8, "tensors": "below", "values": "below"}
  {"name": "x", "role": "input", "state": "held", "shape": [2, 3], "dtype": "float32", "device": "cpu", "bytes": 24, "held_bytes": 0, "is_leaf": false, "same_as": {"node": 1, "name": "other"}}
  {"name": "weight", "role": "input", "state": "held", "shape": [3], "dtype": "float32", "device": "cpu", "bytes": 12, "held_bytes": 0, "is_leaf": true, "same_as": null}
  {"name": "rstd", "role": "output", "state": "held", "shape": [2, 1], "dtype": "float32", "device": "cpu", "bytes": 8, "held_bytes": 8, "is_leaf": false, "same_as": null}
  {"name": "eps", "text": "1e-05"}
 {"index": 3, "name": "torch::autograd::AccumulateGrad", "op": null, "declared": null, "next": [], "held_bytes": 0, "tensors": "below", "values": "below"}
  {"name": "variable", "role": "leaf", "state": "held", "shape": [3], "dtype": "float32", "device": "cpu", "bytes": 12, "held_bytes": 0, "is_leaf": true, "same_as": {"node": 2, "name": "weight"}}
 {"index": 4, "name": "ExpBackward0", "op": null, "declared": null, "next": [5], "held_bytes": 0, "tensors": "below", "values": "below"}
  {"name": "result", "role": "saved", "state": "held", "shape": [2, 3], "dtype": "float32", "device": "cpu", "bytes": 24, "held_bytes": 0, "is_leaf": false, "same_as": {"node": 1, "name": "other"}}
 {"index": 5, "name": "torch::autograd::AccumulateGrad", "op": null, "declared": null, "next": [], "held_bytes": 0, "tensors": "below", "values": "below"}
  {"name": "variable", "role": "leaf", "state": "held", "shape": [2, 3], "dtype": "float32", "device": "cpu", "bytes": 24, "held_bytes": 0, "is_leaf": true, "same_as": null}""",
    )


def test_html_is_a_page_that_needs_nothing_else(tmp_path):
    found = example()
    page = found.to_html(tmp_path / "graph.html")

    assert page == (tmp_path / "graph.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "<td>inspected::norm</td>" in page
    assert f"The graph holds {found.held_bytes} bytes for its backward" in page
    rows = sum(len(node.tensors) + len(node.values) for node in found.nodes)
    assert 2 + rows + len(found.bytes_by_op()) == page.count("<tr>")


def test_a_notebook_shows_a_fragment():
    fragment = example()._repr_html_()

    assert fragment.startswith('<div class="custom-autograd">')
    assert "<html" not in fragment
    assert "<td>inspected::norm</td>" in fragment


def test_html_escapes_every_text():
    y = Doubled.apply(leaf(2))
    y.grad_fn.factor = "<b>&"
    page = inspect(y).to_html()

    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page


def test_dot_has_a_box_for_each_node_and_an_arrow_for_each_edge():
    assert_expected_inline(
        stable(example().to_dot()),
        """\
digraph graph_inspection {
  node [shape=box, style="rounded,filled", fillcolor="#eceff2", color="#57606a", fontname="Helvetica", fontsize=10]
  edge [color="#57606a"]
  n0 [label="SumBackward0\\lself_sym_sizes = (2, 3)\\l"]
  n1 [label="MulBackward0\\lother: float32 (2, 3), 24 bytes\\lself: float32 (2, 3), 24 bytes\\l"]
  n2 [label="inspected::norm\\lrecorded_ops.py:00\\lx: float32 (2, 3), 24 bytes\\lweight: float32 (3,), 12 bytes\\lrstd: float32 (2, 1), 8 bytes\\leps = 1e-05\\l", fillcolor="#dff3e4"]
  n3 [label="AccumulateGrad\\lvariable: float32 (3,), 12 bytes\\l", fillcolor="#dbe9fb"]
  n4 [label="ExpBackward0\\lresult: float32 (2, 3), 24 bytes\\l"]
  n5 [label="AccumulateGrad\\lvariable: float32 (2, 3), 24 bytes\\l", fillcolor="#dbe9fb"]
  n0 -> n1
  n1 -> n2
  n1 -> n4
  n2 -> n4
  n2 -> n3
  n4 -> n5
}
""",
    )


def test_dot_escapes_quotes_and_backslashes():
    y = Doubled.apply(leaf(2))
    y.grad_fn.factor = 'a "b" \\n'

    assert r"""factor = 'a \"b\" \\\\n'\l""" in inspect(y).to_dot()


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_every_node():
    found = example()
    drawing = xml.etree.ElementTree.fromstring(found.to_svg())
    boxes = drawing.findall(".//{http://www.w3.org/2000/svg}g[@class='node']")

    assert len(found.nodes) == len(boxes)


def test_without_graphviz_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")

    with pytest.raises(CustomAutogradError) as caught:
        example().to_svg()
    assert_expected_inline(
        str(caught.value),
        """\
custom_autograd.inspect: cannot draw the graph: the program 'dot' is not installed
  do         install Graphviz (apt-get install graphviz, brew install graphviz), or use to_dot()""",
    )


def test_a_drawing_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: "dot")
    failed = subprocess.CompletedProcess(["dot"], 1, "", "syntax error in line 1\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)

    with pytest.raises(CustomAutogradError) as caught:
        example().to_svg()
    assert_expected_inline(
        str(caught.value),
        """\
custom_autograd.inspect: the program 'dot' cannot draw the graph
  found      syntax error in line 1
  do         use to_dot(), and draw it with another program""",
    )
