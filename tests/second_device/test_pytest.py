"""pytest --custom-ops-device, and parametrize_checks(device=): the tests of an op on the device."""

import os
import subprocess
import sys

import pytest

from second_device.building import environment

OPS = """
import os

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("in_pytest::tripled", reference=True)
def tripled(x: Tensor) -> Tensor:
    with open("devices", "a") as file:
        print(x.device.type, file=file)
    return 3 * x


@tripled.register_backward
def _(grad):
    return 3 * grad


@tripled.register_samples
def _(make):
    yield Sample(make(3, 4))
"""

TEST = """
from pytest_ops import tripled

from custom_autograd.testing import parametrize_checks


@parametrize_checks(tripled, checks=["layouts", "errors", "gradcheck"], device="second")
def test_op(case):
    case()
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "pytest_ops.py").write_text(OPS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def call(*arguments):
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
        command = [sys.executable, "-m", "pytest", "-rA", "--color=no", *arguments]
        finished = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        written = tmp_path / "devices"
        return finished, set(written.read_text().split()) if written.exists() else set()

    return call


def test_the_option(run):
    selected = ["--custom-ops", "pytest_ops", "--custom-ops-checks", "layouts,errors,gradcheck"]
    finished, devices = run(*selected, "--custom-ops-device", "second")

    assert 0 == finished.returncode, finished.stdout
    assert "PASSED pytest_ops::tripled-layouts" in finished.stdout
    assert "PASSED pytest_ops::tripled-gradcheck-x" in finished.stdout
    assert {"second"} == devices


def test_a_device_that_is_not_there(run):
    finished, devices = run("--custom-ops", "pytest_ops", "--custom-ops-device", "third")

    assert pytest.ExitCode.USAGE_ERROR == finished.returncode
    assert "third: there is no device type of that name" in finished.stderr
    assert set() == devices


def test_a_test_file(run, tmp_path):
    (tmp_path / "test_ops.py").write_text(TEST)
    finished, devices = run("test_ops.py")

    assert 0 == finished.returncode, finished.stdout
    assert "PASSED test_ops.py::test_op[tripled-layouts]" in finished.stdout
    assert {"second"} == devices
