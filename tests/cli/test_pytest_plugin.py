"""pytest --custom-ops TARGET, and parametrize_checks: one item per op and check."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPS = """
from custom_autograd.checks.targets import Target, TargetArgument
from custom_autograd.core.samples import Sample


def samples(make):
    yield Sample(make(3))


def right(x):
    return x * 2


def wrong(x):
    return x.detach() * 2


RIGHT = Target("plugin::right", right, right, (TargetArgument("x"),), samples=samples)
WRONG = Target("plugin::wrong", wrong, wrong, (TargetArgument("x"),), samples=samples)
"""

TEST = """
from custom_autograd.testing import parametrize_checks
from plugin_ops import RIGHT, WRONG


@parametrize_checks(RIGHT, WRONG, checks=["gradcheck", "reference"])
def test_op(case):
    case()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "plugin_ops.py").write_text(OPS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_pytest(folder, *arguments):
    paths = os.pathsep.join([str(ROOT), str(folder)])
    plugins = [] if is_installed() else ["-p", "custom_autograd.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", *plugins, "-rA", "--color=no", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}
    )
    return done.returncode, done.stdout + done.stderr


def is_installed():
    from importlib.metadata import entry_points

    return any(row.value == "custom_autograd.pytest_plugin" for row in entry_points(group="pytest11"))


def test_one_item_per_op_and_check_skipped_where_nothing_was_checked(folder):
    code, out = run_pytest(folder, "--custom-ops", "plugin_ops:RIGHT")

    assert 0 == code, out
    assert "PASSED plugin_ops:RIGHT::plugin::right-gradcheck" in out
    assert "no reference is registered (register_reference)" in out


def test_finding_fails_its_item_with_the_report(folder):
    code, out = run_pytest(folder, "--custom-ops", "plugin_ops.py:WRONG")

    assert 1 == code, out
    assert "output 0 depends on 'x' but carries no gradient: it is silently zero" in out
    assert "Traceback" not in out


def test_op_without_samples_is_skipped(folder):
    code, out = run_pytest(folder, "--custom-ops", "plugin_ops:right")

    assert 0 == code, out
    assert "no samples are registered (register_samples)" in out


def test_unknown_target_is_a_usage_error(folder):
    code, out = run_pytest(folder, "--custom-ops", "nowhere")

    assert pytest.ExitCode.USAGE_ERROR == code
    assert "nowhere: there is no module, file or folder of that name" in out


def test_plugin_imports_nothing_heavy_without_the_option(folder):
    (folder / "test_light.py").write_text("import sys\n\ndef test_light():\n    assert 'torch' not in sys.modules\n")
    code, out = run_pytest(folder, "test_light.py")

    assert 0 == code, out


def test_parametrize_checks_makes_one_test_per_op_and_check(folder):
    (folder / "test_ops.py").write_text(TEST)
    code, out = run_pytest(folder, "test_ops.py")

    assert 1 == code, out
    assert "PASSED test_ops.py::test_op[plugin::right-gradcheck]" in out
    assert "FAILED test_ops.py::test_op[plugin::wrong-gradcheck]" in out
    assert "1 failed, 1 passed, 2 skipped" in out
