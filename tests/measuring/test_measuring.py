"""Measurements: every case has its figures, in turns; and the script that measures overhead runs."""

import gc
import itertools
import json
import subprocess
import sys
from pathlib import Path

from custom_autograd.measuring.interleaved import measure
from custom_autograd.measuring.machine import describe_machine

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overhead.py"


def test_cases_take_turns():
    order = []
    measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0)

    rounds = "".join(order).lstrip("a").lstrip("b")  # what comes before is the warming up
    assert 5 <= len([1 for first, second in itertools.pairwise(rounds) if first != second])


def test_every_case_has_its_figures_and_the_collector_is_back():
    found = measure({"a": lambda: None, "b": lambda: sum(range(1000))}, seconds=0)

    assert {"a", "b"} == set(found)
    assert all(0 < timing.minimum <= timing.median and timing.rounds >= 5 for timing in found.values())
    assert gc.isenabled()


def test_the_machine_is_described():
    found = describe_machine()

    assert {"cpu", "cores", "threads", "system", "python", "torch", "gpu"} == set(found)
    assert found["cpu"]


def test_the_script_measures_every_target_it_can(tmp_path):
    out = tmp_path / "found.json"
    options = ["--only", "declare", "--only", "inputs", "--seconds", "0", "--out", str(out)]
    subprocess.run([sys.executable, str(SCRIPT), *options], check=True, capture_output=True)

    found = json.loads(out.read_text())
    assert {"declare", "14 inputs"} == {row["ours"] for row in found["ratios"]}
    assert "cuda" in found["not measured"]
