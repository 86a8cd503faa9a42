"""Ops of the gallery on the device as the command line checks them: their references run."""

import pytest

from custom_autograd import check
from custom_autograd.verification.harness.op_files import load
from second_device.gallery import GALLERY

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", ["flash_attention_varlen.py", "flash_attention_varlen_grad.py"])
def test_a_failure_of_kernels_is_not_expected_of_the_reference(file):
    (op,) = (loaded.value for loaded in load(str(GALLERY / file)))
    report = check(op, checks="special_values", device="second")

    assert {"passed"} == {row.status for row in report.results}, report


def test_an_op_without_its_autocast_policy_is_advised():
    for loaded in load(str(GALLERY / "fixed_point.py")):
        report = check(loaded.value, checks="autocast", device="second")

        assert report.ok, report
        assert {"call register_autocast('second', ...)"} == {row.advice.partition(": ")[2] for row in report.results}
