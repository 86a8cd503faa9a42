"""The plot of docs/explanation/what-a-call-costs.md, from what was recorded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "docs" / "_static" / "what-a-call-costs.svg"
COLOURS = ("#3b6ea8", "#c9d7e8")
OWN = ("by name", "by name, C++ kernel and rule", "drop-in")


def digest_of(recorded: list[dict[str, Any]]) -> str:
    """Return a text that changes with the timings of the calls that are drawn; the plot holds it."""
    text = json.dumps([one["timings"] for one in recorded], sort_keys=True)
    return "timings " + hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(recorded: list[dict[str, Any]], names: dict[str, str], modes: tuple[str, ...], versions: list[str]) -> None:
    """Write the plot: a panel per mode, a row per way to declare an op, a bar per torch.

    Args:
        recorded: the runs, the newest torch first.
        names: what a row is called, by the name of its timings.
        modes: of a call.
        versions: the torch of each run.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "overhead", "font.size": 9, "font.family": "sans-serif"}
    )
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(modes), figsize=(11, 0.34 * len(names) + 1), sharey=True, layout="constrained")
    for panel, mode in zip(panels, modes, strict=True):
        for shift, (one, version) in enumerate(zip(recorded, versions, strict=True)):
            times = [one["timings"].get(f"{key} | {mode}", {}).get("minimum", 0.0) for key in names]
            places = [row + 0.38 * (shift - 0.5) for row in range(len(names))]
            bars = panel.barh(places, times, height=0.36, color=COLOURS[shift], label=f"PyTorch {version}")
            panel.bar_label(bars, [f"{time:.1f}" if time else "" for time in times], padding=2, fontsize=7)
        panel.set_title(mode, fontsize=9)
        panel.margins(x=0.15)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("µs per call")
    panels[0].set_yticks(range(len(names)), [name.replace("`", "") for name in names.values()])
    for label, key in zip(panels[0].get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if key in OWN else "normal")
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, loc="upper right", fontsize=8)
    figure.savefig(FILE, metadata={"Date": None, "Description": digest_of(recorded)})
    plt.close(figure)
