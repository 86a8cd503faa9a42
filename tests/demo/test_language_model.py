"""The demonstration runs, its curves agree, and it notices a gradient that is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "language_model"

# rms_norm with a backward that treats the normaliser as a constant: the classic mistake.
FAULTY = """
import dataclasses, sys
sys.path.insert(0, {folder!r})
import data, torch
from agreement import compare
from ops import plain_ops
from training import Size, train

def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6).detach() * weight

size = Size(features=32, heads=2, layers=1, context=32, batch=4)
windows = data.batches(data.text(), steps=25, batch=size.batch, context=size.context, seed=0)
honest, again = (train("honest", plain_ops(), windows, size, seed=0) for _ in range(2))
faulty = train("faulty", dataclasses.replace(plain_ops(), rms_norm=rms_norm), windows, size, seed=0)
print(*[finding.question for finding in compare(honest, again) if not finding.holds], sep=", ")
print(*[finding.question for finding in compare(honest, faulty)[:2] if not finding.holds], sep=", ")
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_the_four_runs_agree_and_are_written_down(tmp_path):
    finished = run_python(str(DEMO / "train.py"), "--quick", "--output", str(tmp_path))

    assert finished.returncode == 0, finished.stdout + finished.stderr
    document = json.loads((tmp_path / "language_model.json").read_text())
    assert [len(run["losses"]) for run in document["runs"]] == [30] * 4
    assert all(finding["holds"] for finding in document["findings"])
    assert (tmp_path / "language_model.md").exists()
    assert (tmp_path / "language_model.png").exists()


@pytest.mark.slow
def test_a_wrong_gradient_is_noticed_and_an_honest_one_is_not():
    finished = run_python("-c", FAULTY.format(folder=str(DEMO)))

    assert finished.stdout.splitlines() == ["", "gradients, early losses"], finished.stderr
