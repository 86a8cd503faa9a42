"""Calls of other sizes that would take long, as in an interpreter, are left out, and this is said."""

import time

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness import pace


@custom_op("faults_pace::halved", reference=True)
def halved(x: Tensor) -> Tensor:
    return x / 2


@halved.register_kernel("cpu", name="slow")
def _(x):
    end = time.process_time() + 5e-4 * min(x.numel(), 150)  # as long as small calls say, and not longer
    while time.process_time() < end:
        pass
    return x / 2


@each("check, shape", [("schema", (4, 4)), ("fake", (4, 4)), ("sizes", (4, 4)), ("low_precision", (4, 3))])
def test_a_size_at_which_a_call_would_take_long_is_left_out(check, shape, monkeypatch):
    monkeypatch.setattr(pace, "MOST_SECONDS", 0.5)
    result = verdict(check, [Sample(torch.ones(shape))])(halved)

    assert "passed" == result.status
    assert "left out, because a call would take about" in result.message


@custom_op("faults_pace::prepared", reference=True)
def prepared(x: Tensor) -> Tensor:
    return x / 2


@prepared.register_kernel("cpu", name="slow_to_begin")
def _(x):
    end = time.process_time() + 5e-3  # whatever the size
    while time.process_time() < end:
        pass
    return x / 2


@each("check, shape", [("schema", (2, 2)), ("fake", (2, 2)), ("sizes", (2, 2)), ("low_precision", (2, 1))])
def test_what_a_call_takes_whatever_its_size_leaves_nothing_out(check, shape):
    result = verdict(check, [Sample(torch.ones(shape))])(prepared)

    assert "passed" == result.status
    assert "a call would take" not in result.message
