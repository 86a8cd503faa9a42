"""What the documentation says of speed is what was recorded."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "what-a-call-costs.md").read_text()
RECORDED = json.loads((ROOT / "benchmarks" / "results" / "overhead-cpu.json").read_text())


@pytest.mark.parametrize("row", RECORDED["ratios"], ids=lambda row: f"{row['ours']}, {row['mode']}")
def test_the_page_shows_every_ratio_and_whether_it_holds(row):
    verdict = "yes" if row["ratio"] <= row["target"] else "no"
    figures = f"{row['mode'] or '-'} | {row['ratio']:.3f} | {row['target']} | {verdict}"

    assert f"| {row['ours']} / {row['peer']} | {figures} |" in PAGE


@pytest.mark.parametrize("name", ["torch.mul", "by name", "drop-in", "torch.library", "C++"])
def test_the_page_shows_recorded_times(name):
    timings = [RECORDED["timings"][f"{name} | {mode}"] for mode in ("no grad", "forward", "forward + backward")]

    assert " | ".join(f"{timing['minimum']:.2f}" for timing in timings) in PAGE


def test_the_page_names_the_machine():
    assert RECORDED["machine"]["cpu"] in PAGE
