"""Plot and tabulate the benchmarks of a gallery op, from benchmarks/results/gallery/."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generate.markup import code, escape, table

INK = "#010203"
"""The colour of the plot, replaced by the colour of the surrounding text in light and dark themes."""
COLOURS = {"op": "#2b7de9", "eager": "#b0862f", "compiled": "#8a63d2"}
OTHER = "#3a9d7a"
SHOWN = {"µs": ("ms", 1000.0), "MiB": ("MiB", 1.0), "GB/s": ("GB/s", 1.0)}
"""The unit in which a unit is shown, and their ratio."""

PHRASES = {
    "cpu": "{}",
    "gpu": "{}",
    "cores": "{} cores",
    "threads": "{} threads",
    "system": "{}",
    "python": "Python {}",
}
"""The phrases for the facts about a machine; other facts follow their name."""

Row = dict[str, Any]  # Any: names and numbers of a JSON document


def results(folder: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the device type and the document of each file that was recorded for a gallery file."""
    files = sorted(folder.glob(f"{name}-*.json")) if folder.is_dir() else []
    return [(file.stem.removeprefix(f"{name}-"), json.loads(file.read_text(encoding="utf-8"))) for file in files]


def section(folder: Path, name: str) -> str:
    """Return the section with the benchmarks; empty if there are none."""
    found = results(folder, name)
    if not any(document.get("rows") for _, document in found):
        return ""
    parts = ["## What it costs", *(_device(device, document) for device, document in found if document.get("rows"))]
    if "cuda" not in [device for device, _ in found]:
        parts.append("Not measured on a GPU.")
    return "\n\n".join(parts)


def _device(device: str, document: dict[str, Any]) -> str:
    rows = document["rows"]
    machine = {key: escape(str(value)) for key, value in document.get("machine", {}).items() if value is not None}
    facts = [PHRASES.get(key, f"{key} {{}}").format(value) for key, value in machine.items()]
    head = ("case", "mode", "callable", "minimum", "median", "op / callable")
    pairs = zip(rows, [{}, *rows[:-1]], strict=True)
    lines = [[*_place(row, before), code(row["callable"]), *_figures(row)] for row, before in pairs]
    missing = [f"- Not measured: {escape(_missing(entry))}" for entry in document.get("not measured", [])]
    parts = [
        f"Measured on a {device.upper() if device == 'cpu' else 'GPU'}: {', '.join(facts)}.",
        "A bar is the time or the memory of a call relative to this op, in one interleaved run: shorter is better.",
        figure(rows),
        table(head, lines),
        _targets(document.get("targets", [])),
        "\n".join(missing),
    ]
    return "\n\n".join(part for part in parts if part)


def _place(row: Row, before: Row) -> tuple[str, str]:
    """Return case and mode, empty if they are the same as in the row before, to save room on small screens."""
    is_same = row["case"] == before.get("case")
    return ("" if is_same else escape(row["case"]), "" if is_same and row["mode"] == before["mode"] else row["mode"])


def _targets(targets: list[Row]) -> str:
    """Return the table of target ratios, and whether they are met."""
    head = ("case", "op / callable", "mode", "at most", "measured", "holds")
    rows = []
    for row in targets:
        ratio = "-" if row.get("ratio") is None else f"{row['ratio']:.2f}"
        holds = {True: "yes", False: "no"}.get(row.get("holds"), "not measured")
        rows.append([escape(row["case"]), code(row["peer"]), row["mode"], f"{row['limit']:.2f}", ratio, holds])
    return "The targets:\n\n" + table(head, rows) if rows else ""


def _missing(entry: object) -> str:
    """Return what was not measured, and why."""
    return ", ".join(str(value) for value in entry.values()) if isinstance(entry, dict) else str(entry)


def _figures(row: Row) -> list[str]:
    unit, size = SHOWN[row.get("unit", "µs")]
    ratio = row.get("op / callable", row.get("op / copy"))  # bandwidth is compared with that of a copy
    shown = [f"{row[key] / size:.3g} {unit}" if row.get(key) is not None else "-" for key in ("minimum", "median")]
    return [*shown, "-" if ratio is None else f"{ratio:.2f}"]


def figure(rows: list[Row]) -> str:
    """Draw one group of bars per case and mode, as SVG in the colours of the page."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["mode"]), []).append(row)
    drawn = {place: found for place, found in groups.items() if _can_be_compared(found)}
    return f'<div class="plot">\n{_svg(drawn)}\n</div>' if drawn else ""


def _can_be_compared(rows: list[Row]) -> bool:
    """Return True if the rows include the op and another callable."""
    return len(rows) > 1 and any(row["callable"] == "op" for row in rows)


def _svg(groups: dict[tuple[str, str], list[Row]]) -> str:
    bars = sum(len(rows) + 1.6 for rows in groups.values())
    return as_svg(lambda axes: _draw(axes, groups), 0.6 + 0.23 * bars, "Ratios of the table below")


def as_svg(draw: Callable[[Any], None], height: float, label: str) -> str:  # Any: matplotlib is optional
    """Return a chart as SVG in the colours of the page.

    Args:
        draw: draws on the axes of matplotlib.
        height: of the chart, inches.
        label: what it shows, for readers who do not see it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gallery", "font.size": 10}):
        chart = Figure(figsize=(6.4, height), layout="constrained")
        axes = chart.add_subplot()
        draw(axes)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(INK)
        axes.tick_params(colors=INK, left=False)
        text = io.StringIO()
        chart.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', rf'\1 role="img" aria-label="{label}"', svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    return "\n".join(line for line in svg.splitlines() if line.strip())


def _draw(axes: Any, groups: dict[tuple[str, str], list[Row]]) -> None:  # Any: matplotlib is optional
    place, ticks, labels = 0.0, [], []
    longest = max(_ratio(row, rows) for rows in groups.values() for row in rows)
    for (case, mode), rows in groups.items():
        axes.text(0, place + 0.1, f"{case}: {mode}", color=INK, fontweight="bold", va="bottom")
        for row in rows:
            place -= 1
            ratio = _ratio(row, rows)
            axes.barh(place + 0.5, ratio, height=0.8, color=COLOURS.get(row["callable"], OTHER))
            axes.text(ratio + longest / 80, place + 0.5, f"{ratio:.2f}", color=INK, va="center")
            ticks.append(place + 0.5)
            labels.append(row["callable"])
        place -= 1.6
    axes.set_yticks(ticks, labels, color=INK)
    axes.set_xlim(0, longest * 1.12)
    axes.set_ylim(place + 1.2, 1.2)


def _ratio(row: Row, rows: list[Row]) -> float:
    """Return the figure of a callable relative to that of the op."""
    own = next(found["minimum"] for found in rows if found["callable"] == "op")
    return float(row["minimum"] / own) if own else 0.0
