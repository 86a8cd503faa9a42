"""An inspection as one HTML page, and as a fragment for notebooks.

templates/inspection_page.html      the page: style within, nothing is loaded from elsewhere
templates/inspection_fragment.html  the tables, in a notebook
templates/inspection_tables.html    what they share
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from custom_autograd.graph.rows import InspectedNode
from custom_autograd.graph.table import COLUMNS, rows_of
from custom_autograd.rendering.pages import render


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
