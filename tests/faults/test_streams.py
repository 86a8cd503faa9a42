"""The check `streams` fails an op that waits for the device; without a device it is skipped and says so."""

import pytest
import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.core.samples import Sample

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


@pytest.mark.cuda
@needs_cuda
def test_op_on_the_default_stream_fails():
    assert "on a side stream: output 0[" in result_of(OnDefaultStream).message
