"""The Triton kernels of attention compile for heads of models, which no sample is as large as, and fit into GPUs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_values import GALLERY

TESTS = Path(__file__).parents[1]

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.slow
@pytest.mark.nightly  # tests/kernels/test_triton_compiles.py compiles the same kernels for one of these
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_heads_of_models_compile(target, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = os.pathsep.join([str(GALLERY.parents[1]), str(GALLERY), str(TESTS)])
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": folders}
    command = [sys.executable, "-c", PROGRAM, target]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    if "unusable" in report:
        pytest.skip(report["unusable"])

    assert {} == report["failures"]
    count = 5 if target == "cuda:90" else 4
    assert {"attend": count, "differentiate_queries": count, "differentiate_keys": count} == report["compiled"]


PROGRAM = """
import json, sys
import torch
from flash_attention_triton import launch_attend
from flash_attention_triton_backward import launch_grads
from triton_launches import compile_launches, recording

torch.version.hip = "6.4" if sys.argv[1].startswith("hip") else None
launches = []
cases = (64, torch.bfloat16, (0, 1)), (128, torch.bfloat16, (0, 1)), (256, torch.float32, (0,))
for features, dtype, causals in cases:
    if features == 256 and sys.argv[1] != "cuda:90":
        continue  # exact products take a minute to compile
    for causal in map(bool, causals):
        q, k = (torch.empty(1, heads, 256, features, dtype=dtype) for heads in (8, 2))
        out, lse = torch.empty_like(q), torch.empty(1, 8, 256)
        with recording(launches, f"{features} features, {dtype}, causal={causal}"):
            launch_attend(q, k, k, None, (None, None), 0.1, causal, out, lse)
            launch_grads(out, q, k, k, None, (None, None), lse, lse, 0.1, causal, q, k, k)
print(json.dumps(compile_launches(launches, sys.argv[1])))
"""
