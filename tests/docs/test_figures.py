"""The figures in the prose of README.md and of the front page are those that are recorded in benchmarks/results."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURE = re.compile(r"\b0\.\d+\b|\b\d+ of (?:\d+|them)\b|\b\d+ (?:faults|cells|nestings)\b")
CODE = re.compile(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", re.M | re.S)


def recorded(*parts: str):
    return json.loads((ROOT / "benchmarks" / "results").joinpath(*parts).read_text(encoding="utf-8"))


def ratios(torch: str) -> list[str]:
    """What a call by name takes, relative to torch.library: without gradients, with them, and with a backward."""
    found = {
        row["mode"]: row["ratio"] for row in recorded("overhead-cpu", f"{torch}.json")["ratios"] if is_by_name(row)
    }
    return [f"{found[mode]:.2f}" for mode in ("no grad", "forward", "forward + backward")]


def is_by_name(row) -> bool:
    return (row["ours"], row["peer"]) == ("by name", "torch.library")


def caught(tool: str) -> int:
    return sum(row["outcomes"][tool]["status"] == "caught" for row in faults())


def faults() -> list:
    """The rows of wrong ops; the others are of honest ones."""
    return [row for row in recorded("catches", "2.15.0.json")["rows"] if row["check"]]


def held(table: str, subject: str) -> int:
    return recorded("torch-versions", "3.11", "2.15.0.json")[table][subject]["held"]


def sentences(document: str) -> list[str]:
    """What a document says of what is recorded; the figures of other sources are in the last line of each."""
    new, old = ratios("2.15.0"), ratios("2.13.0")
    all_cells = recorded("torch-versions", "3.11", "2.15.0.json")["database"]["custom_autograd"]["all"]
    if document == "docs/index.md":
        return [
            f"finds each of {caught('check')} faults",
            f"takes [{new[0]} of the time of `torch.library.custom_op`](explanation/what-a-call-costs.md) with PyTorch "
            f"2.15, and {old[0]} with 2.13",
            "half of 68 that its authors had not seen",
        ]
    return [
        f"a call takes {new[0]} of the time of `torch.library.custom_op` without gradients, {new[1]} with gradients, "
        f"and {new[2]} forward and backward with PyTorch 2.15 (2.13: {old[0]}, {old[1]} and {old[2]})",
        f"Of {len(faults())} faults planted in custom ops, `torch.autograd.gradcheck` finds {caught('gradcheck')} and "
        f"`torch.library.opcheck` finds {caught('opcheck')}; [`check` finds all {caught('check')}]",
        f"they give {all_cells} cells.\n  {held('database', 'torch.library')} of them pass with "
        f"`torch.library.custom_op`, and all {held('database', 'custom_autograd')} pass with `custom_autograd`",
        f"only {held('nestings', 'torch.autograd.Function')} of {held('nestings', 'plain operations')} nestings of two "
        f"transforms work; with `custom_autograd` all {held('nestings', 'custom_autograd')} do",
        f"all {held('database', 'custom_autograd')} cells pass on PyTorch 2.11 to 2.15",
        "half of 68 realistic faults that its authors had not seen",
    ]


@pytest.mark.parametrize("document", ["README.md", "docs/index.md"])
def test_figures_are_the_recorded_ones(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    said = sentences(document)

    assert [] == [sentence for sentence in said if sentence not in text]
    for sentence in said:
        text = text.replace(sentence, "")
    assert [] == FIGURE.findall(CODE.sub("", text)), "figures that no record gives: add their sentence"
