"""The check `process_state` fails an op that leaves the process changed, and puts back what it changed."""

import os

import numpy as np
import pytest
import torch

from custom_autograd.core.samples import Sample
from custom_autograd.verification.check import check


def result_of(op):
    (result,) = check(op, [Sample(torch.randn(3, requires_grad=True))], checks=["process_state"]).results
    return result


def leaving(change):
    def op(x):
        change()
        return x * 2

    return op


def read():
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cpu"),
        torch.backends.cudnn.benchmark,
        np.geterr()["over"],
        os.getcwd(),
    )


CHANGES = {
    "default dtype is torch.float64, and was torch.float32": lambda: torch.set_default_dtype(torch.float64),
    "default device is meta, and was cpu": lambda: torch.set_default_device("meta"),
    "number of threads is 7": lambda: torch.set_num_threads(7),
    "deterministic algorithms is (True, False), and was (False, False)": lambda: torch.use_deterministic_algorithms(
        True
    ),
    "anomaly mode is True": lambda: torch.autograd.set_detect_anomaly(True),
    "float32 precision is medium": lambda: torch.set_float32_matmul_precision("medium"),
    "autocast is True, and was False": lambda: torch.set_autocast_enabled("cpu", True),
    "NumPy's error handling is": lambda: np.seterr(over="raise"),
    "working folder is /, and was": lambda: os.chdir("/"),
    "cudnn is (True, True, False), and was": lambda: setattr(torch.backends.cudnn, "benchmark", True),
}


@pytest.mark.parametrize("text", CHANGES)
def test_what_a_call_changes_fails_and_is_put_back(text):
    before = read()

    with torch.backends.__allow_nonbracketed_mutation():  # torch's own test tools forbid to set the flags of cuDNN
        result = result_of(leaving(CHANGES[text]))

    assert "failed" == result.status, result.message
    assert f"a call: the process is left changed: {text}" in result.message
    assert before == read()


def test_grad_mode_fails_and_is_put_back():
    result = result_of(leaving(lambda: torch.set_grad_enabled(not torch.is_grad_enabled())))

    assert "a call: the process is left changed: grad mode is True, and was False" in result.message
    assert torch.is_grad_enabled()


class Drawing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        torch.rand(1)
        return 2 * grad


class Setting(Drawing):
    @staticmethod
    def backward(ctx, grad):
        torch.set_num_threads(5)
        return 2 * grad


def test_a_backward_that_draws_fails():
    result = result_of(Drawing)

    assert "failed" == result.status, result.message
    assert "the backward draws random numbers, or seeds them, and the forward does not" == result.message


def test_what_a_backward_changes_fails():
    before = torch.get_num_threads()

    assert "forward and backward: the process is left changed: number of threads is 5" in result_of(Setting).message
    assert before == torch.get_num_threads()


@pytest.mark.parametrize("op", [torch.sin, lambda x: torch.nn.functional.dropout(x, 0.5)], ids=["sin", "dropout"])
def test_an_op_that_leaves_everything_passes(op):
    assert "passed" == result_of(op).status
