"""A kernel that accepts no sample is verified in a dtype that it does accept; if there is none, the report says so."""

import pytest
import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op

DOUBLES = {"when": lambda x: x.dtype == torch.float64}


def op_with(name, kernel, **options):
    @custom_op(f"faults_kernel_dtypes::{name}", reference=True)
    def op(x: Tensor) -> Tensor:
        return x.exp().sum(-1)

    op.register_kernel("cpu", kernel, name="other", **options)
    return op


def result_of(op, name):
    (result,) = check(op, [Sample(torch.tensor([[0.5, -1.0, 0.25]]))], checks=[name], isolated=False).results
    return result


def from_the_beginning_of_memory(x):
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return memory[: x.numel()].view(x.shape).exp().sum(-1)


def wrong_above_five(x):
    return x.clamp(max=5.0).exp().sum(-1)


@pytest.mark.parametrize("name", ["kernels", "explore"])
def test_a_kernel_of_a_dtype_that_no_sample_has_is_looked_at(name):
    result = result_of(op_with(f"offset_{name}", from_the_beginning_of_memory, layouts="contiguous", **DOUBLES), name)

    assert "failed" == result.status
    assert result.message.startswith("in float64, ")
    assert "'x' with a step of 2 along dimension 0: output 0[0] = nan, expected 3.30063" in result.message


def test_it_is_called_with_other_numbers_too():
    result = result_of(op_with("large", wrong_above_five, **DOUBLES), "explore")

    assert "failed" == result.status
    assert result.message.startswith("in float64, numbers of 'x' 20 times as large")


def test_a_kernel_that_is_right_passes():
    assert "passed" == result_of(op_with("right", lambda x: x.exp().sum(-1), **DOUBLES), "kernels").status


def test_a_kernel_that_takes_no_dtype_did_not_pass():
    result = result_of(op_with("never", wrong_above_five, when=lambda x: x.shape[-1] > 1000), "kernels")

    assert ("skipped", "the cpu kernel 'other' takes the sample in no dtype") == (result.status, result.message)
