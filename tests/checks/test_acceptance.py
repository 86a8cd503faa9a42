"""Failures that pyproject.toml accepts are skipped, a failure once they pass, and an error where they name nothing."""

import pytest
import torch
from verdicts import verdict

from custom_autograd import CheckError, Sample
from custom_autograd.cli import main
from custom_autograd.verification.report import Report, Result
from custom_autograd.verification.report.acceptance import accept, find_accepted, require_known

TABLE = '[tool.custom_autograd.xfail]\n"{op}" = {{ {check} = "a known kink" }}\n'


def result(status, sample="one", **changes):
    return Result("ns::op", "gradcheck", sample, status, "it is wrong" if status == "failed" else "", **changes)


def accepted(*results):
    return accept(Report(results), {"ns::op": {"gradcheck": "a known kink"}}).results


def silent(x):
    return 2 * x.detach()


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    return tmp_path


def test_failure_is_skipped_with_its_reason():
    (found,) = accepted(result("failed"))

    assert ("skipped", "a known kink") == (found.status, found.accepted)
    assert found.message == "accepted, because a known kink\nit is wrong"


def test_pass_on_one_sample_beside_a_failure_is_no_finding():
    assert ["skipped", "passed"] == [row.status for row in accepted(result("failed"), result("passed", "two"))]


def test_pass_on_every_sample_is_a_failure():
    first, second = accepted(result("passed"), result("passed", "two"))

    assert ("failed", "passed") == (first.status, second.status)
    assert "it passes, but pyproject.toml says that it fails, because a known kink" in first.message


def test_what_is_skipped_anyhow_says_nothing():
    assert ["skipped"] == [row.status for row in accepted(result("skipped"))]


def test_failure_that_a_sample_accepts_counts():
    found = accepted(result("skipped", accepted="known"), result("passed", "two"))

    assert ["skipped", "passed"] == [row.status for row in found]


def test_failure_of_another_op_stays():
    (found,) = accept(Report((result("failed"),)), {"ns::other": {"gradcheck": "why"}}).results

    assert found.status == "failed"


def test_check_reads_the_nearest_file(project):
    (project / "pyproject.toml").write_text(TABLE.format(op="silent", check="gradcheck"))
    found = verdict("gradcheck", [Sample(torch.ones(2))])(silent)

    assert ("skipped", "a known kink") == (found.status, found.accepted)


def test_project_without_a_table_accepts_nothing(project):
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    assert {} == find_accepted(project, ["gradcheck"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.format(op="ns::op", check="gradchek"), "a failure of 'gradchek' .*(\n.*)*did you mean 'gradcheck'"),
        ("[tool.custom_autograd]\nxfail = 3\n", "the table in .* has another form"),
        ('[tool.custom_autograd.xfail]\n"ns::op" = "gradcheck"\n', "'ns::op' in .* has another form"),
        ('[tool.custom_autograd.xfail]\n"ns::op" = { gradcheck = "" }\n', "'ns::op', gradcheck in .* has another form"),
        ("[tool.custom_autograd\n", "this is not TOML"),
    ],
    ids=["unknown check", "no table", "no reasons", "no reason", "no TOML"],
)
def test_table_that_cannot_be_meant_is_refused(project, text, message):
    (project / "pyproject.toml").write_text(text)

    with pytest.raises(CheckError, match=message):
        find_accepted(project, ["gradcheck"])


def test_unknown_op_is_refused_with_a_suggestion():
    with pytest.raises(CheckError, match=r"'ns::opp' in .* no op of that name(\n.*)*did you mean 'ns::op'"):
        require_known({"ns::opp": {}}, ["ns::op"])


OPS = """
from custom_autograd import Sample, custom_op
from torch import Tensor


@custom_op("{namespace}::doubled", reference=True)
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_samples
def _(make):
    yield Sample(make(3))
"""


def test_command_checks_the_names_of_ops_in_a_module_but_not_in_a_file_among_others(imports_of, capsys):
    namespace = f"accept_{abs(hash(str(imports_of)))}"
    (imports_of / "accept_ops.py").write_text(OPS.format(namespace=namespace))
    (imports_of / "pyproject.toml").write_text(TABLE.format(op=f"{namespace}::double", check="gradcheck"))
    codes = [main(["check", target, "--checks", "schema", "-q"]) for target in ("accept_ops", "accept_ops.py")]

    assert [2, 0] == codes
    assert f"did you mean '{namespace}::doubled'?" in capsys.readouterr().err
