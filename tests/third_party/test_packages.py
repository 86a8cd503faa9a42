"""Packages that declare ops give the same numbers with `torch.library.custom_op = custom_autograd.custom_op`."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from third_party.package_flows import FLOWS, NOT_IMPORTED

PROGRAM = Path(__file__).with_name("package_flows.py")


def start(*arguments):
    """Start the program in a process of its own, without access to a model hub."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def report_of(process, name):
    """Return what the process reports; skip the test if plain PyTorch cannot import the package either."""
    printed, errors = process.communicate()
    if process.returncode == NOT_IMPORTED and "replaced" not in process.args:
        pytest.skip(f"{name} cannot be imported with this torch: {errors.strip().splitlines()[-1]}")
    assert 0 == process.returncode, errors
    return json.loads(printed.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOWS)
def test_a_package_gives_the_same_numbers_with_ours_in_place_of_torchs(name):
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    with start(name) as first, start(name, "replaced") as second:
        expected, found = report_of(first, name), report_of(second, name)

    assert {False} == set(expected["ours"].values())
    assert {True} == set(found["ours"].values())
    assert expected["values"] == found["values"]
