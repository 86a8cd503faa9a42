"""Measurements: every case has its figures, in turns; and the script that measures overhead runs."""

import gc
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from custom_autograd.benchmarking.interleaved import measure
from custom_autograd.benchmarking.machine import describe_machine

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overhead.py"
MODES = ("no grad", "forward", "forward + backward")


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmarks") / "found.json"
    subprocess.run([sys.executable, str(SCRIPT), "--quick", "--out", str(out)], check=True, capture_output=True)
    return json.loads(out.read_text())


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


@pytest.mark.slow
def test_the_script_measures_every_target_it_can(tmp_path):
    out = tmp_path / "found.json"
    options = ["--only", "declare", "--only", "inputs", "--seconds", "0", "--out", str(out)]
    subprocess.run([sys.executable, str(SCRIPT), *options], check=True, capture_output=True)

    found = json.loads(out.read_text())
    assert {"declare", "14 inputs"} == {row["ours"] for row in found["ratios"]}
    assert "cuda" in found["not measured"]


@pytest.mark.slow
def test_a_quick_run_has_every_peer_in_every_mode_or_says_why_not(quick_run):
    timings = quick_run["timings"]
    measured = {name.split(" | ")[0] for name in timings}

    assert {"date", "machine", "native calls", "timings", "ratios", "import", "not measured"} == set(quick_run)
    assert "--quick builds nothing" == quick_run["not measured"]["C++"]
    assert {"torch.mul", "by name", "drop-in", "torch.library", "overload", "raw Library"} <= measured
    recording = measured - {"define and impl"}  # that op has no autograd
    expected = {f"{name} | {mode}" for name in recording for mode in MODES} | {"define and impl | no grad"}
    assert expected == set(timings)
    assert all({"minimum", "median", "rounds", "calls"} == set(timing) for timing in timings.values())


@pytest.mark.slow
def test_a_ratio_says_what_it_is_held_to_and_whether_it_holds(quick_run):
    assert quick_run["ratios"]
    for row in quick_run["ratios"]:
        assert {"ours", "peer", "mode", "ratio", "comparison", "target", "holds"} == set(row)
        assert row["holds"] is (row["ratio"] <= row["target"])
