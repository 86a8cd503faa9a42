"""custom-autograd check --device: the backend is one that `import torch` loads, or is imported by the TARGET."""

import json
import os
import subprocess
import sys

import pytest

from second_device.building import FOLDER, environment

pytestmark = pytest.mark.slow

TARGET = FOLDER / "tripled.py"


def run(folder, env, *words):
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def check(folder, env, *words, target=TARGET):
    command = ["-m", "custom_autograd", "check", str(target), "--checks", "F07,G01,errors", "--device", *words]
    return run(folder, env, *command)


def without_entry_point():
    """Return the environment of a process in which `import torch` does not load the backend."""
    env = environment()
    folders = [folder for folder in env["PYTHONPATH"].split(os.pathsep) if folder != str(FOLDER / "installed")]
    return {**env, "PYTHONPATH": os.pathsep.join(folders)}


def test_a_backend_that_torch_loads(tmp_path):
    finished = check(tmp_path, environment(), "second")

    assert 0 == finished.returncode, finished.stdout + finished.stderr
    assert "3 passed" in finished.stdout


def test_a_backend_that_the_target_imports(tmp_path):
    finished = check(tmp_path, without_entry_point(), "second")

    assert 0 == finished.returncode, finished.stdout + finished.stderr
    assert "3 passed" in finished.stdout


def test_the_script_of_a_finding_imports_what_the_target_imports(tmp_path):
    target, found = tmp_path / "wrong.py", tmp_path / "found.json"
    target.write_text(TARGET.read_text().replace("return 3 * grad", "return 2 * grad"))
    check(tmp_path, without_entry_point(), "second", "--checks", "gradcheck", "--json", str(found), target=target)
    [script] = [row["script"] for row in json.loads(found.read_text())["results"] if row.get("script")]
    finished = run(tmp_path, without_entry_point(), "-c", script)

    assert 'device="second:0"' in script
    assert "CheckError: FAILED second_device::tripled: gradcheck" in finished.stderr


def test_a_device_that_is_not_there(tmp_path):
    finished = check(tmp_path, environment(), "third")

    assert 2 == finished.returncode
    assert "third: there is no device type of that name" in finished.stderr
