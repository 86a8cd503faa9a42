"""pytest --custom-ops TARGET, and parametrize_checks: one item per op and check."""

import os
from pathlib import Path

import pytest

from custom_autograd.core.groups import GROUPS
from custom_autograd.verification.checks import CHECKS
from python_server import OF_CHECKS, run_python

ROOT = Path(__file__).parents[2]
OPS = """
from custom_autograd.verification.harness.targets import Target, TargetArgument
from custom_autograd.schema.samples import Sample


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


def run_pytest(folder, *arguments, modules=OF_CHECKS):
    paths = os.pathsep.join([str(ROOT), str(folder)])
    plugins = [] if is_installed() else ["-p", "custom_autograd.pytest_plugin"]
    command = ["-m", "pytest", *plugins, "-rA", "--color=no", *arguments]
    done = run_python(*command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, modules=modules)
    return done.returncode, done.stdout + done.stderr


def is_installed():
    from importlib.metadata import entry_points

    return any(row.value == "custom_autograd.pytest_plugin" for row in entry_points(group="pytest11"))


@pytest.mark.slow
def test_one_item_per_op_and_check_skipped_where_nothing_was_checked(folder):
    code, out = run_pytest(folder, "--custom-ops", "plugin_ops:RIGHT", "--custom-ops-checks", "gradcheck,reference")

    assert 0 == code, out
    assert "PASSED plugin_ops:RIGHT::right-gradcheck-x" in out
    assert "no reference is registered (register_reference)" in out


def test_finding_fails_its_item_with_the_report(folder):
    code, out = run_pytest(folder, "--custom-ops", "plugin_ops.py:WRONG", "-k", "gradcheck")

    assert 1 == code, out
    assert "output 0 depends on 'x' but carries no gradient: it is silently zero" in out
    assert "Traceback" not in out


@pytest.mark.slow
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
    code, out = run_pytest(folder, "test_light.py", modules=())

    assert 0 == code, out


@pytest.mark.slow
def test_parametrize_checks_makes_one_test_per_op_and_check(folder):
    (folder / "test_ops.py").write_text(TEST)
    code, out = run_pytest(folder, "test_ops.py")

    assert 1 == code, out
    assert "PASSED test_ops.py::test_op[right-gradcheck-x]" in out
    assert "FAILED test_ops.py::test_op[wrong-gradcheck-x]" in out
    assert "1 failed, 1 passed, 2 skipped" in out


TWO_INPUTS = """
from custom_autograd import Sample, custom_op
from torch import Tensor


@custom_op("plugin_{}::scale", reference=True)
def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


@scale.register_backward
def _(grad, x, weight):
    return {{"x": grad * weight, "weight": {}}}


@scale.register_samples
def _(make):
    yield Sample(make(3), make(3)){}
"""


def write_scale(folder, name, *, gradient="grad * x", sample=""):
    (folder / f"{name}.py").write_text(TWO_INPUTS.format(name, gradient, sample))


def collected(folder, *arguments):
    """The names of the items that a run would have."""
    _, out = run_pytest(folder, "--collect-only", "-q", "no_tests.py", *arguments)
    return [line.partition("::")[2] for line in out.splitlines() if "::" in line]


@pytest.fixture
def scale(folder):
    (folder / "no_tests.py").write_text("")
    write_scale(folder, "scale_ops")
    return folder


def test_items_are_named_after_op_check_and_inputs(scale):
    found = collected(scale, "--custom-ops", "scale_ops.py", "--custom-ops-checks", "gradcheck,fake")

    assert ["scale-fake", "scale-gradcheck-x_weight", "scale-gradcheck-x", "scale-gradcheck-weight"] == found


@pytest.mark.slow
def test_items_have_the_namespace_where_two_ops_share_a_name(scale):
    write_scale(scale, "other_ops")
    targets = ["--custom-ops", "scale_ops.py", "--custom-ops", "other_ops.py"]

    found = collected(scale, *targets, "--custom-ops-checks", "fake")
    assert ["plugin_scale_ops::scale-fake", "plugin_other_ops::scale-fake"] == found


@pytest.mark.slow
def test_k_and_m_choose_items_under_strict_markers(scale):
    options = ["--custom-ops", "scale_ops.py", "--strict-markers", "-m", "custom_op and derivatives"]
    found = collected(scale, *options, "-k", "weight and not x_weight")

    expected = ["scale-gradcheck-weight", "scale-second_order-weight", "scale-forward_mode-weight"]
    assert expected == found


@pytest.mark.slow
def test_only_the_part_that_is_wrong_fails(scale):
    write_scale(scale, "scale_ops", gradient="-grad * x")
    code, out = run_pytest(scale, "--custom-ops", "scale_ops.py", "--custom-ops-checks", "gradcheck", "no_tests.py")

    assert 1 == code, out
    assert "PASSED scale_ops.py::scale-gradcheck-x\n" in out
    assert "FAILED scale_ops.py::scale-gradcheck-weight" in out


@pytest.mark.slow
def test_accepted_failure_is_one_item_for_all_parts(scale):
    accepted = '.xfail("gradcheck", reason="known")'
    write_scale(scale, "scale_ops", gradient="-grad * x", sample=accepted)
    code, out = run_pytest(scale, "--custom-ops", "scale_ops.py", "--custom-ops-checks", "gradcheck", "no_tests.py")

    assert 0 == code, out
    assert "accepted, because known" in out


@pytest.mark.slow
def test_unknown_check_is_a_usage_error(scale):
    code, out = run_pytest(scale, "--custom-ops", "scale_ops.py", "--custom-ops-checks", "gradchek")

    assert pytest.ExitCode.USAGE_ERROR == code
    assert "did you mean 'gradcheck'?" in out


@pytest.mark.slow
def test_xdist_and_junit_properties(scale):
    options = ["--custom-ops", "scale_ops.py", "--custom-ops-checks", "schema", "-n", "1", "--junit-xml", "found.xml"]
    code, out = run_pytest(scale, *options, "no_tests.py")

    assert 0 == code, out
    assert '<property name="code" value="F02" />' in (scale / "found.xml").read_text()


def test_every_group_of_a_check_is_a_marker():
    assert {check.group for check in CHECKS} <= set(GROUPS)
