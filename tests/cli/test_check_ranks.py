"""custom-autograd check --ranks N: real collectives, results rather than exit codes, and an end in every case."""

import os
import subprocess
import sys

import pytest
from serialisation.processes import ROOT
from torch import distributed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multi_rank,
    pytest.mark.skipif(not distributed.is_available(), reason="torch is built without distributed"),
]

OPS = """
import os, time
from torch import Tensor, distributed
from custom_autograd import custom_op

def norm(x: Tensor, weight: Tensor) -> Tensor:
    if distributed.is_initialized() and distributed.get_rank() == 1 and "FAULT" in os.environ:
        os._exit(7) if os.environ["FAULT"] == "exit" else time.sleep(600)
    return x.softmax(-1) * weight

honest = custom_op("ranks::honest", norm, shapes="x: n [d], weight: [d] -> output: n [d]", reference=True)
if "WRONG" in os.environ:
    wrong = custom_op("ranks::wrong", norm, shapes="x: n d, weight: d -> output: n d", reference=True)
"""


def check(folder, **environment):
    (folder / "ops.py").write_text(OPS)
    return subprocess.run(
        [sys.executable, "-m", "custom_autograd", "check", "ops.py", "--ranks", "2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_honest_ops_pass_and_wrong_lines_fail(tmp_path):
    found = check(tmp_path, WRONG="1")

    assert 1 == found.returncode
    assert "ranks::honest: 3 passed" in found.stdout
    assert "ranks::wrong: 3 failed" in found.stdout
    assert "on rank 0: with DTensors (x: R, weight: S(0)): " in found.stdout


def test_a_rank_that_dies_is_named(tmp_path):
    found = check(tmp_path, FAULT="exit")

    assert 0 != found.returncode
    assert "ranks::honest: rank 1 of 2 ended by itself, with exit code 7, before it sent its results" in found.stderr


def test_a_rank_that_hangs_ends_the_run(tmp_path):
    found = check(tmp_path, FAULT="hang", CUSTOM_AUTOGRAD_RANKS_TIMEOUT="12")

    assert 0 != found.returncode
    assert (
        "ranks::honest: rank 0, 1 of 2 did not end within 12 s (CUSTOM_AUTOGRAD_RANKS_TIMEOUT sets the limit)"
        in found.stderr
    )
