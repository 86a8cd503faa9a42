"""custom-autograd check --device: the backend is one that `import torch` loads, or is imported by the TARGET."""

import os
import subprocess
import sys

from second_device.building import FOLDER, environment

OPS = """
import torch
from second_device import backend
from torch import Tensor

from custom_autograd import Sample, custom_op

if not hasattr(torch, "second"):
    backend.install()


@custom_op("command_line::tripled", reference=True)
def tripled(x: Tensor) -> Tensor:
    return 3 * x


@tripled.register_backward
def _(grad):
    return 3 * grad


@tripled.register_samples
def _(make):
    yield Sample(make(3, 4))
    yield Sample(make(2, 3), make(3)).raises(TypeError)
"""


def run(folder, env, *arguments):
    (folder / "ops.py").write_text(OPS)
    command = [sys.executable, "-m", "custom_autograd", "check", "ops.py", "--checks", "F07,G01,errors", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_a_backend_that_torch_loads(tmp_path):
    finished = run(tmp_path, environment(), "--device", "second")

    assert 0 == finished.returncode, finished.stdout + finished.stderr
    assert "layouts" in finished.stdout


def test_a_backend_that_the_target_imports(tmp_path):
    env = environment()
    folders = [folder for folder in env["PYTHONPATH"].split(os.pathsep) if folder != str(FOLDER / "installed")]
    finished = run(tmp_path, {**env, "PYTHONPATH": os.pathsep.join(folders)}, "--device", "second")

    assert 0 == finished.returncode, finished.stdout + finished.stderr
    assert "layouts" in finished.stdout


def test_a_device_that_is_not_there(tmp_path):
    finished = run(tmp_path, environment(), "--device", "third")

    assert 2 == finished.returncode
    assert "third: there is no device type of that name" in finished.stderr
