"""Tests that need a GPU have a session of their own; in every other session there is none."""

import os
import subprocess
import sys

import pytest
import torch
from tables import each

from visible_gpus import HIDING, VARIABLE, hide_gpus


@each(
    ("arguments", "is_hidden"),
    {
        "all": (["pytest"], True),
        "not slow": (["pytest", "-m", "not slow"], True),
        "not cuda": (["pytest", "-m", "not cuda and not slow"], True),
        "cuda or others": (["pytest", "-m", "cuda or triton"], True),
        "cuda": (["pytest", "-q", "-m", "cuda", "tests"], False),
        "some of cuda": (["pytest", "-m", "cuda and not slow"], False),
        "in one word": (["pytest", "-m=cuda"], False),
    }.values(),
)
def test_only_a_session_of_tests_that_need_a_gpu_sees_one(arguments, is_hidden):
    variables = {"CUDA_VISIBLE_DEVICES": "1"}
    hide_gpus(arguments, variables)

    assert ("" if is_hidden else "1") == variables["CUDA_VISIBLE_DEVICES"]


@each(("first", "expected"), [(["pytest", "-m", "cuda"], "1"), (["pytest"], "")])
def test_a_worker_sees_what_the_process_that_started_it_sees(first, expected):
    variables = {"CUDA_VISIBLE_DEVICES": "1"}
    hide_gpus(first, variables)
    hide_gpus(["-c"], variables)

    assert expected == variables["CUDA_VISIBLE_DEVICES"]


@pytest.mark.skipif(os.environ[VARIABLE] == "1", reason="this session is of tests that need a GPU")
def test_no_gpu_is_there_in_this_session():
    assert {""} == {os.environ[name] for name in HIDING}
    assert not torch.cuda.is_available()


WARNS = """
import warnings

def pytest_configure():
    warnings.warn("configured")

def pytest_runtest_setup():
    warnings.warn("set up")
"""


@pytest.mark.parametrize(("plugin", "ends"), [("pytest_foreign", False), ("ours", True)])
def test_warnings_of_other_plugins_do_not_end_a_session(request, tmp_path, plugin, ends):
    """Those of tests, and of anything else, are errors."""
    (tmp_path / f"{plugin}.py").write_text(WARNS)
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    settings = request.config.rootpath / "pyproject.toml"
    options = ["-q", "-c", str(settings), f"--rootdir={tmp_path}", "-o", "cache_dir=cache", "-p", plugin]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ends == (found.returncode != 0), found.stdout + found.stderr
