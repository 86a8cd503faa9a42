"""Every op of the gallery on the second device: the checks that do not take long."""

import pytest
import torch

from custom_autograd.verification.check import case_of
from custom_autograd.verification.checks import CHECKS
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import call_on, target_of
from second_device import backend
from second_device.gallery import ops, problems

pytestmark = pytest.mark.slow

OPS = ops()
SLOWEST = {"low_precision", "second_order", "sharding", "nesting", "sizes", "directional", "symbolic", "forward_mode"}
"""They take two thirds of the time; test_gallery_thoroughly.py runs them, and those that compile, on six ops."""
LEFT_OUT = {*SLOWEST, "explore"}
CHEAP = [check.name for check in CHECKS if check.group != "compiler" and check.name not in LEFT_OUT] + ["explore=1s"]


@pytest.mark.parametrize("name", ["kv_cache_append", "segment_reduce", "softmax_cross_entropy"])
def test_an_op_of_the_gallery_with_a_kernel_in_cpp(name):
    assert "second" in record_of(target_of(OPS[name])).kernels
    assert [] == problems(OPS[name], ["quick", "gradcheck", "needs", "vmap"])


@pytest.mark.slow
def test_kernels_of_the_cpu_run(monkeypatch):
    calls = []
    make_call = backend.native.HostCall
    monkeypatch.setattr(backend.native, "HostCall", lambda: calls.append(None) or make_call())
    served = {name: op for name, op in OPS.items() if "second" in getattr(op, "kernels", ())}
    idle = []
    for name, op in served.items():
        calls.clear()
        sample = next(sample for sample in case_of(op, device="second").samples if sample.error is None)
        with torch.no_grad():
            call_on(op, sample)
        idle += [] if calls else [name]

    assert len(served) > 20
    assert [] == idle


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", OPS)
def test_every_op_of_the_gallery(name):
    assert [] == problems(OPS[name], CHEAP)
