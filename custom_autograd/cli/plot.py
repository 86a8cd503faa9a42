"""The figures of `custom-autograd bench` as bars. matplotlib is optional, and imported here only when it is used."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def formats() -> Mapping[str, str]:
    """Return what can be written, by suffix."""
    from matplotlib.backend_bases import FigureCanvasBase  # optional

    found: Mapping[str, str] = FigureCanvasBase.get_supported_filetypes()
    return found


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:  # Any: names and numbers
    """Write one bar per figure, grouped by sample and mode.

    Args:
        rows: what was measured, each with op, sample, callable, mode and minimum, µs.
        path: its suffix is one of `formats`.
    """
    from matplotlib.figure import Figure  # optional

    groups = list(dict.fromkeys((row["op"], row["sample"], row["mode"]) for row in rows))
    names = list(dict.fromkeys(row["callable"] for row in rows))
    figure = Figure(figsize=(10, min(1.5 + 0.3 * len(groups) * len(names), TALLEST)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for position, name in enumerate(names):
        own = {(row["op"], row["sample"], row["mode"]): row["minimum"] for row in rows if row["callable"] == name}
        bars = [(groups.index(group) + position * height, minimum) for group, minimum in own.items()]
        axes.barh([at for at, _ in bars], [minimum for _, minimum in bars], height, label=name)
    middle = 0.4 - height / 2
    labels = [f"{op}\n{_short(sample)}\n{mode}" for op, sample, mode in groups]
    axes.set_yticks([index + middle for index in range(len(groups))], labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time per call, µs (shortest of all rounds)")
    axes.legend()
    figure.savefig(path, dpi=120)


def _short(sample: str) -> str:
    return sample if len(sample) <= LONGEST_LABEL else f"{sample[: LONGEST_LABEL - 1]}…"


LONGEST_LABEL = 60
TALLEST = 400  # inches; matplotlib draws nothing taller than 65536 dots
