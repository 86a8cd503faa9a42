"""pytest --custom-ops-device, and parametrize_checks(device=): the tests of an op on the device."""

import pytest

from python_server import OF_CHECKS, run_python
from second_device.building import environment, variables

pytestmark = pytest.mark.slow

TEST = """
from second_device.tripled import tripled

from custom_autograd.testing import parametrize_checks


@parametrize_checks(tripled, checks=["layouts", "errors", "gradcheck"], device="second")
def test_op(case):
    case()
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def call(*arguments):
        command = ("-m", "pytest", "-rA", "--color=no", *arguments)
        finished = run_python(*command, cwd=tmp_path, env=environment(), modules=OF_CHECKS, variables=variables())
        written = tmp_path / "devices"
        return finished, set(written.read_text().split()) if written.exists() else set()

    return call


def test_the_option(run):
    selected = ["--custom-ops", "second_device.tripled", "--custom-ops-checks", "layouts,errors,gradcheck"]
    finished, devices = run(*selected, "--custom-ops-device", "second")

    assert 0 == finished.returncode, finished.stdout
    assert "PASSED second_device.tripled::tripled-layouts" in finished.stdout
    assert "PASSED second_device.tripled::tripled-gradcheck-x" in finished.stdout
    assert {"second"} == devices


def test_a_device_that_is_not_there(run):
    finished, devices = run("--custom-ops", "second_device.tripled", "--custom-ops-device", "third")

    assert pytest.ExitCode.USAGE_ERROR == finished.returncode
    assert "third: there is no device type of that name" in finished.stderr
    assert set() == devices


def test_a_test_file(run, tmp_path):
    (tmp_path / "test_ops.py").write_text(TEST)
    finished, devices = run("test_ops.py")

    assert 0 == finished.returncode, finished.stdout
    assert "PASSED test_ops.py::test_op[tripled-layouts]" in finished.stdout
    assert {"second"} == devices
