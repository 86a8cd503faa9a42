"""Every Triton kernel of the gallery compiles for GPUs that are not here, as its op launches it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_values import GALLERY
from slow_cases import nightly_but
from triton_launches import kernels_of, launches_of, missed

PROGRAM = Path(__file__).parents[1] / "triton_launches.py"

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def report_on(folder: Path, target: str, cache: Path) -> dict:
    """What another process says, which has no interpreter in place of the compiler; nothing comes from a cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(GALLERY.parents[1])}
    command = [sys.executable, str(PROGRAM), str(folder), target]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    if "unusable" in report:
        pytest.skip(report["unusable"])
    return report


def test_every_kernel_is_launched_by_a_sample():
    """In each dtype: a kernel without a launch would not be compiled by the tests below."""
    assert kernels_of(GALLERY)
    assert [] == missed(GALLERY, launches_of(GALLERY))


@needs_triton
@pytest.mark.parametrize("target", nightly_but("cuda:90".__eq__, ["cuda:80", "cuda:90", "hip:gfx942"]))
def test_every_kernel_compiles(target, tmp_path):
    report = report_on(GALLERY, target, tmp_path)

    assert ([], {}) == (report["missed"], report["failures"])
    assert report["compiled"]


@needs_triton
@pytest.mark.slow
def test_a_kernel_that_does_not_compile_is_reported(tmp_path):
    """And one that no sample launches."""
    (tmp_path / "planted.py").write_text(PLANTED)
    report = report_on(tmp_path, "cuda:90", tmp_path / "cache")

    assert {"sound"} == report["compiled"].keys()
    assert {"broken"} == report["failures"].keys()
    assert "arange's range must be a power of 2" in report["failures"]["broken"]
    assert ["forgotten", "forgotten"] == [line.split()[0] for line in report["missed"]]


PLANTED = """
from __future__ import annotations

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def doubled(value) -> tl.tensor:
    return value + value


@triton_kernel
def sound(x, out, block: tl.constexpr) -> None:
    tl.store(out + tl.arange(0, block), doubled(tl.load(x + tl.arange(0, block))))


@triton_kernel
def broken(x, out) -> None:
    tl.store(out + tl.arange(0, 3), tl.load(x + tl.arange(0, 3)))


@triton_kernel
def forgotten(x) -> None:
    tl.store(x, 0)


@custom_op("planted::double", reference=True)
def double(x: Tensor) -> Tensor:
    return x + x


@double.register_kernel("cuda", name="triton")
def _(x):
    out = torch.empty_like(x)
    sound[(1,)](x, out, block=16)
    broken[(1,)](x, out)
    return out


@double.register_samples
def _(make):
    yield Sample(make(16))
"""
