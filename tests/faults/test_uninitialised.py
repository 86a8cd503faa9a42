"""The check `uninitialised` fails elements that nobody writes."""

import sys

import numpy as np
import pytest
import torch
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("uninitialised", lambda make: [Sample(make(7))])


def whole(x):
    return torch.empty_like(x).copy_(x)


def without_tail(x):
    out = torch.empty_like(x)
    out[:4] = x[:4]
    return out


class GradientWithoutTail(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        out[:-1] = 2 * grad[:-1]
        return out


def test_written_memory_passes_and_the_mode_is_as_before():
    assert "passed" == result_of(whole).status
    assert not torch.are_deterministic_algorithms_enabled()


def test_unwritten_tail_fails():
    result = result_of(without_tail)

    assert (
        "with memory filled with nan: output 0: 3 of 7 elements are never written, the first at [4]" in result.message
    )
    assert "a tail, a branch or a boundary is left out, and torch.empty does not fill" == result.cause


def test_unwritten_element_of_a_gradient_fails():
    assert (
        "with memory filled with nan: gradient of 'x': 1 of 7 elements are never written, the first at [6]"
        == result_of(GradientWithoutTail).message
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of glibc is filled only")
@pytest.mark.parametrize("size", [5, 3000], ids=["cached by NumPy", "larger"])
def test_an_unwritten_element_of_an_array_of_numpy_fails(size):
    def without_last(x):
        out = np.empty(len(x), np.float64)
        out[:-1] = x[:-1].numpy()
        return torch.from_numpy(out).to(x.dtype)

    result = verdict("uninitialised", lambda make: [Sample(make(size, requires_grad=False))])(without_last)

    assert f"with other bytes in new memory, output 0[{size - 1}] = " in result.message
    assert "an element is read or returned that was never written, such as of numpy.empty or malloc" == result.cause


def test_an_array_of_numpy_that_is_written_passes():
    def doubled(x):
        out = np.empty(len(x), np.float64)
        out[:] = 2 * x.numpy()
        return torch.from_numpy(out).to(x.dtype)

    assert "passed" == verdict("uninitialised", lambda make: [Sample(make(7, requires_grad=False))])(doubled).status
