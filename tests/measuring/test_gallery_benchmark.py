"""The script that measures the gallery: every callable in every mode, and nothing that computes something else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from custom_autograd.benchmarking.memory import peak_memory

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "measure_gallery.py"

CASES = """
import torch
from cases import Case

def arguments(device):
    return torch.randn(2048, 512, device=device, requires_grad=True), torch.rand(512, device=device) + 1

def reference(x, y): return (x * y).tanh()
def op(x, y): return torch.tanh(y * x)
def wrong(x, y): return torch.tanh(x + y)
def detached(x, y): return torch.tanh(x * y) + 0 * x.detach() * y - (x - x.detach())
def raising(x, y): raise ValueError("not for these arguments")
def drawn(x, y): return 2.0 * (torch.rand(512, 512) < 0.5)
def drawn_wrong(x, y): return 2.0 * (torch.rand(512, 512) < 0.6)

def cases():
    targets = {("eager", "forward"): 1000.0, ("eager", "memory"): 1e-6, ("wrong", "forward"): 1.0}
    peers = {"wrong": wrong, "other gradient": detached, "raising": raising}
    yield Case("tiny", op, reference, arguments, peers, targets, bytes_moved=2**23)
    yield Case("drawn", drawn_wrong, drawn, arguments)
"""

ODD_CASES = """
import torch
from cases import Case

def arguments(device): return (torch.randn(2048, 512, device=device, requires_grad=True),)
def tied(device): return (torch.ones(4, 512, device=device, requires_grad=True),)
def absent(x): import no_such_library
def drawn(x): return torch.where(torch.rand_like(x) >= 0.5, 2 * x, 0)
def drawn_otherwise(x): return torch.where(torch.rand_like(x) < 0.5, 2 * x, 0)

def cases():
    yield Case("drawn", drawn_otherwise, drawn, arguments)
    highest = lambda x: x.max(0).values
    yield Case("tied", highest, lambda x: x.amax(0), tied, {"absent": absent}, determined=lambda grad: grad.sum(0))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What is written and printed for two tiny cases."""
    folder = tmp_path_factory.mktemp("gallery")
    (folder / "tiny.py").write_text(CASES)
    options = ["--seconds", "0", "--threads", "1", "--without", "compiled", "--out", str(folder / "results")]
    command = [sys.executable, str(SCRIPT), str(folder / "tiny.py"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (folder / "results" / "tiny-cpu.json").exists(), ended.stderr
    return json.loads((folder / "results" / "tiny-cpu.json").read_text()), ended


def test_the_file_has_what_is_documented(run):
    assert {"date", "machine", "rows", "targets", "not measured"} == set(run[0])
    assert 1 == run[0]["machine"]["threads"]


def test_what_agrees_is_measured_in_every_mode(run):
    measured = {(row["callable"], row["mode"]) for row in run[0]["rows"] if row["case"] == "tiny"}

    expected = {(name, mode) for name in ("op", "eager") for mode in ("forward", "backward", "memory")}
    assert expected | {("op", "bandwidth")} == measured


def test_ratios_are_those_of_the_shortest_times(run):
    rows = {(row["callable"], row["mode"]): row for row in run[0]["rows"] if row["case"] == "tiny"}
    expected = rows["op", "forward"]["minimum"] / rows["eager", "forward"]["minimum"]

    assert round(expected, 3) == rows["eager", "forward"]["op / callable"]
    assert 1.0 == rows["op", "forward"]["op / callable"]


def test_memory_is_that_of_the_tensors(run):
    """The product, its tanh, which is also what is saved, and at most two more for the gradient: 4 MiB each."""
    peaks = [row["minimum"] for row in run[0]["rows"] if row["case"] == "tiny" and row["mode"] == "memory"]

    assert all(11.5 <= peak <= 16.5 for peak in peaks), peaks


def test_what_disagrees_is_not_timed_and_said(run):
    found, ended = run
    skipped = [skip for skip in found["not measured"] if skip["mode"] == "all"]
    reasons = {(skip["case"], skip["callable"]): skip["reason"] for skip in skipped}

    assert reasons["tiny", "wrong"].startswith("forward: ")
    assert reasons["tiny", "other gradient"].startswith("backward: ")
    assert "ValueError: not for these arguments" == reasons["tiny", "raising"]
    assert {("tiny", "op"), ("tiny", "eager")} == {(row["case"], row["callable"]) for row in found["rows"]}
    assert 1 == ended.returncode


def test_what_is_drawn_at_random_agrees_by_its_moments(run):
    """The reference agrees with itself, and what draws more often does not."""
    reasons = {skip["callable"]: skip["reason"] for skip in run[0]["not measured"] if skip["case"] == "drawn"}

    assert {"op", "compiled"} == set(reasons)
    assert reasons["op"].startswith("forward: mean ")


def test_what_is_random_tied_or_not_installed_is_no_error(tmp_path):
    """Draws agree by their moments, ties by what is determined, and a peer that is not there is skipped."""
    (tmp_path / "odd.py").write_text(ODD_CASES)
    options = ["--seconds", "0", "--threads", "1", "--without", "compiled", "--out", str(tmp_path)]
    ended = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "odd.py"), *options], check=False)
    found = json.loads((tmp_path / "odd-cpu.json").read_text())
    reasons = {(skip["case"], skip["callable"]): skip["reason"] for skip in found["not measured"]}

    assert 0 == ended.returncode
    assert "not installed: No module named 'no_such_library'" == reasons["tied", "absent"]
    measured = {(row["case"], row["callable"], row["mode"]) for row in found["rows"]}
    assert {(case, "op", mode) for case in ("drawn", "tied") for mode in ("forward", "backward")} <= measured


def test_targets_are_judged(run):
    judged = {(row["peer"], row["mode"]): row["holds"] for row in run[0]["targets"]}
    missing = [(skip["callable"], skip["mode"]) for skip in run[0]["not measured"] if "target" in skip["reason"]]

    assert {("eager", "forward"): True, ("eager", "memory"): False} == judged
    assert [("wrong", "forward")] == missing


def test_what_is_not_measured_is_listed(run):
    found, ended = run

    assert {"case": "all", "callable": "all", "mode": "cuda", "reason": "there is no GPU"} in found["not measured"]
    assert "left out with --without" in {skip["reason"] for skip in found["not measured"]}
    assert all(skip["reason"] in ended.stdout for skip in found["not measured"])


def test_a_case_that_is_not_there_is_named():
    ended = subprocess.run([sys.executable, str(SCRIPT), "no_such_op"], capture_output=True, text=True, check=False)

    assert 2 == ended.returncode
    assert "no such cases: " in ended.stderr


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of a process")
def test_peak_memory_is_that_of_the_tensors_alive_at_once():
    script = """
import torch
from custom_autograd.benchmarking.memory import peak_memory

def work():
    first = torch.ones(2**23)      # 32 MiB
    second = torch.ones(2**23)
    del first
    return second + second         # two at a time

x = torch.ones(2**20)
for _ in range(2):                 # what the first round loads is not counted
    found = [round(peak_memory(work) / 2**20), round(peak_memory(lambda: x.t()) / 2**20)]
print(found)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "[64, 0]\n" == ended.stdout


def test_a_system_that_tells_no_peak_raises(tmp_path, monkeypatch):
    monkeypatch.setattr("custom_autograd.benchmarking.memory._STATUS_RESET", tmp_path / "no" / "file")

    with pytest.raises(OSError, match="No such file"):
        peak_memory(lambda: None)
