"""The wheel, installed in an environment of its own, serves a project that knows nothing of this repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OP = """
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("stranger::scale", reference=True)
def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


@scale.register_samples
def _(make):
    yield Sample(make(3), make(3))
"""

TEST = """
from custom_autograd.testing import parametrize_checks

from stranger import scale


@parametrize_checks(scale, checks=["gradcheck"])
def test_scale(case):
    case()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "hatchling" in done.stderr:
        pytest.skip("pip cannot fetch hatchling, which builds the wheel")
    assert 0 == done.returncode, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def project(wheel, tmp_path_factory):
    """A folder with an op, its test, and an environment in which the wheel is installed beside the torch of ours."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "stranger.py").write_text(OP)
    (folder / "test_stranger.py").write_text(TEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join(others))
    return folder


def run_in(project, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(project / "venv" / "bin" / "python"), *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_installed_package_is_not_that_of_the_repository(project):
    _, out = run_in(project, "-c", "import custom_autograd; print(custom_autograd.__file__)")

    assert str(project) in out


@pytest.mark.slow
def test_plugin_is_found_and_names_its_items(project):
    code, out = run_in(
        project, "-m", "pytest", "-v", "--custom-ops", "stranger", "--custom-ops-checks", "quick", "stranger.py"
    )

    assert 0 == code, out
    assert "stranger::scale-gradcheck-x_weight PASSED" in out


@pytest.mark.slow
def test_parametrize_checks_makes_the_same_names(project):
    code, out = run_in(project, "-m", "pytest", "-v", "-m", "derivatives", "test_stranger.py")

    assert 0 == code, out
    assert "test_stranger.py::test_scale[scale-gradcheck-x_weight] PASSED" in out


@pytest.mark.slow
def test_command_runs(project):
    code, out = run_in(project, "-m", "custom_autograd", "check", "stranger.py", "--checks", "schema")

    assert 0 == code, out
