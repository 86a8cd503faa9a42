"""What the page on kernel sources says of builders is what was recorded; and the script that records it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tables import each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "kernel-sources.md").read_text()
RECORDED = json.loads((ROOT / "benchmarks" / "results" / "build-times.json").read_text())


@each("name", RECORDED["seconds"])
def test_the_page_shows_recorded_times(name):
    seconds = RECORDED["seconds"][name]
    calls = [RECORDED["calls"][f"{name} | out {kind}"]["minimum"] for kind in ("given", "made")]
    figures = f"{seconds['cold build']:.1f} | {seconds['warm load']:.2f} | {calls[0]:.2f} | {calls[1]:.2f}"

    assert f"| {name} | {figures} |" in PAGE


@each("name", RECORDED["refusals"])
def test_the_page_shows_what_was_refused(name):
    found = RECORDED["refusals"][name]
    refused = " | ".join(found[kind] for kind in ("fake", "lazily negated", "requires grad", "wrong dtype"))
    killed = RECORDED["after a killed build"].get(name, "not measured")

    assert f"| {name} | {refused} | {killed} |" in PAGE


def test_the_decision_rests_on_what_was_recorded():
    """The reasons that the page gives."""
    killed, refusals = RECORDED["after a killed build"], RECORDED["refusals"]

    assert killed["cpp_extension, stable ABI"].startswith("waits")
    assert killed["cpp_kernel"].startswith("builds")
    assert "SIGSEGV" in refusals["tvm-ffi"]["fake"]
    assert refusals["cpp_kernel"]["fake"].startswith("raises")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kernels are built on Linux and macOS only")
def test_a_child_of_the_script_says_how_long_its_first_result_took(tmp_path):
    script = str(ROOT / "benchmarks" / "build_times.py")
    command = [sys.executable, script, "--child", "first_result", "cpp_kernel", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert float(ended.stdout) > 0
