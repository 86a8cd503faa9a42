"""The check `streams` fails an op that waits for the device; without a device it is skipped and says so."""

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.checks import bounds
from custom_autograd.verification.harness.base import PASSED
from custom_autograd.verification.harness.targets import target_of

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


result_of = verdict("streams", lambda make: [Sample(make(64, 64))])


class Waits(Function):
    """y = 2 x, with the factor read back from the device."""

    @staticmethod
    def forward(ctx, x):
        return x * x.new_tensor(2.0).item()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class OnDefaultStream(Function):
    """y = 2 x on the default stream, whatever the current one is."""

    @staticmethod
    def forward(ctx, x):
        with torch.cuda.stream(torch.cuda.default_stream(x.device)):
            return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device_is_a_skip_with_its_reason():
    result = result_of(torch.sin)

    assert ("skipped", "there is no CUDA device") == (result.status, result.message)


@pytest.mark.cuda
@needs_cuda
def test_op_on_the_current_stream_passes():
    assert "passed" == result_of(torch.sin).status


@pytest.mark.cuda
@needs_cuda
def test_op_that_waits_for_the_device_fails():
    assert "the op waits for the device" in result_of(Waits).message


def doubled_after_a_wait(x: Tensor) -> Tensor:
    return x * x.new_tensor(2.0).item()


silent = custom_op("streams::silent", doubled_after_a_wait, reference=True)
declared = custom_op("streams::declared", doubled_after_a_wait, reference=True, tags=torch.Tag.cudagraph_unsafe)


@pytest.mark.parametrize(("op", "expected"), [(silent, ["waited"]), (declared, [])], ids=["not declared", "declared"])
def test_only_an_op_that_declares_to_wait_is_not_asked_for_synchronisation(monkeypatch, op, expected):
    """The parts of the check that need a device are replaced: which of them run is seen without one."""
    asked = []
    monkeypatch.setattr(bounds, "_call_on", lambda target, sample, device: device)
    monkeypatch.setattr(bounds, "_on_side_stream", lambda target, call: PASSED)
    monkeypatch.setattr(bounds, "_without_synchronisation", lambda target, call: asked.append("waited") or PASSED)
    monkeypatch.setattr(bounds, "_on_other_device", lambda target, call: PASSED)

    found = [finding.message for finding in bounds.Streams().run(target_of(op), Sample(torch.ones(2)))]

    assert expected == asked
    assert (op is declared) == ("torch.Tag.cudagraph_unsafe" in "".join(found))


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize(("op", "status"), [(silent, "failed"), (declared, "passed")], ids=["not declared", "declared"])
def test_op_that_declares_to_wait_passes(op, status):
    assert status == result_of(op).status


@pytest.mark.cuda
@needs_cuda
def test_op_on_the_default_stream_fails():
    assert "on a side stream: output 0[" in result_of(OnDefaultStream, device="cuda").message
