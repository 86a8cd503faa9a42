"""The gallery on the second device: with the kernels of the CPU, which read its memory, else with its references."""

from pathlib import Path

import pytest

from custom_autograd import check
from custom_autograd.verification.checks import CHECKS
from custom_autograd.verification.harness.op_files import load
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import target_of
from second_device.host_kernels import copy_autocast_policy, serve_by_host_kernels

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
OPS = {}
for loaded in load(str(GALLERY)):
    target = target_of(loaded.value)
    if target.samples is not None:
        OPS[target.name.removeprefix("gallery::")] = loaded.value
        record = record_of(target)
        if record is not None:
            serve_by_host_kernels(record)
            copy_autocast_policy(record)

WITHOUT_COMPILER = [check.name for check in CHECKS if check.group != "compiler"]
"""The others compile, which takes most of the time; without Inductor the code is the same for every device."""


def problems(report):
    return [f"{row.op} {row.check} {row.sample}: {row.message}" for row in report.results if row.is_finding]


@pytest.mark.parametrize("name", ["kv_cache_append", "segment_reduce", "softmax_cross_entropy"])
def test_an_op_of_the_gallery_with_a_kernel_in_cpp(name):
    assert "second" in record_of(target_of(OPS[name])).kernels
    report = check(OPS[name], checks=["quick", "gradcheck", "needs", "vmap"], device="second")

    assert [] == problems(report)
    assert [row for row in report.results if row.status == "passed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_every_op_of_the_gallery(name):
    report = check(OPS[name], checks=WITHOUT_COMPILER, device="second")

    assert [] == problems(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rms_norm", "segment_reduce", "kv_cache_append"])
def test_compiled_code(name):
    report = check(OPS[name], checks="compiler", device="second")

    assert [] == problems(report)
