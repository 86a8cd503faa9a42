"""Calls of other sizes that would take long, as in an interpreter, are left out, and this is said."""

import time

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample


@custom_op("faults_pace::halved", reference=True)
def halved(x: Tensor) -> Tensor:
    return x / 2


@halved.register_kernel("cpu", name="slow")
def _(x):
    end = time.process_time() + 2e-3 * min(x.numel(), 16)  # as long as the sample says, and short beyond it
    while time.process_time() < end:
        pass
    return x / 2


@each("check, shape", [("schema", (4, 4)), ("fake", (4, 4)), ("sizes", (4, 4)), ("low_precision", (4, 3))])
def test_a_size_at_which_a_call_would_take_long_is_left_out(check, shape):
    result = verdict(check, [Sample(torch.ones(shape))])(halved)

    assert "passed" == result.status
    assert "left out, because a call would take about" in result.message
