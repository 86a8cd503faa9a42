"""The check `process_state` fails an op that leaves the process changed, and puts back what it changed."""

import os
import random
import sys

import numpy as np
import torch
from tables import each
from verdicts import verdict

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import check
from custom_autograd.verification.harness import settings

result_of = verdict("process_state", [Sample(torch.randn(3, requires_grad=True))])


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
    "autocast is ('cpu',), and was ()": lambda: torch.set_autocast_enabled("cpu", True),
    "NumPy's error handling is": lambda: np.seterr(over="raise"),
    "working folder is /, and was": lambda: os.chdir("/"),
    "cudnn is (True, True, False), and was": lambda: setattr(torch.backends.cudnn, "benchmark", True),
}


@each("text", CHANGES)
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


CONSTANTS = {
    **CHANGES,
    "recursion limit is": lambda: sys.setrecursionlimit(1234),
}
MEANT = {"default device is meta, and was cpu", "autocast is ('cpu',), and was ()"}
"""What no check can set beforehand: an op computes something else with it."""


@each("text", sorted(set(CONSTANTS) - MEANT))
def test_a_constant_that_an_earlier_call_has_set_already_fails(text):
    change, before = CONSTANTS[text], read()

    with torch.backends.__allow_nonbracketed_mutation(), settings.kept():
        change()
        result = result_of(leaving(change))

    assert "failed" == result.status, result.message
    assert f"a call that finds other settings: the process is left changed: {text.split(' is')[0]} is" in result.message
    assert before == read()


def set_double(x):
    torch.set_default_dtype(torch.float64)
    return x * 2


def test_a_constant_fails_after_the_checks_that_come_before():
    samples = [Sample(torch.randn(3, requires_grad=True))]
    *_, result = check(set_double, samples, checks=["determinism", "process_state"], isolated=False).results

    assert "default dtype is torch.float64, and was torch.float32" in result.message
    assert torch.float32 == torch.get_default_dtype()


class SettingInBackward(Drawing):
    @staticmethod
    def backward(ctx, grad):
        torch.set_float32_matmul_precision("medium")
        return 2 * grad


def test_a_constant_that_a_backward_sets_fails_after_it_is_set():
    with settings.kept():
        torch.set_float32_matmul_precision("medium")
        message = result_of(SettingInBackward).message

    text = "forward and backward that finds other settings: the process is left changed: float32 precision is medium"
    assert text in message


def test_flags_of_cudnn_that_torch_has_frozen_are_put_back():
    def turn_off(x):
        torch.backends.cudnn.set_flags(_enabled=False)
        return x * 2

    frozen, before = torch.backends.flags_frozen(), torch.backends.cudnn.enabled
    torch.backends.disable_global_flags()
    try:
        result = result_of(turn_off)
    finally:
        torch.backends._FLAGS_FROZEN = frozen

    assert "cudnn is (False, False, False), and was (True, False, False)" in result.message
    assert before == torch.backends.cudnn.enabled


GENERATORS = {
    "Python": [random.random, lambda: random.seed(0)],
    "NumPy": [np.random.rand, lambda: np.random.seed(0)],
}


@each("owner", GENERATORS)
@each("place", [0, 1])
def test_numbers_of_another_generator_fail(owner, place):
    result = result_of(leaving(GENERATORS[owner][place]))

    text = f"a call: the global random numbers of {owner}, which torch.manual_seed does not reach, are drawn or seeded"
    assert ("failed", text) == (result.status, result.message.splitlines()[0])
    assert "draw from torch's generator, and declare it" in result.cause


def test_a_kernel_that_seeds_torch_fails():
    result = result_of(leaving(lambda: torch.manual_seed(3)))

    assert "failed" == result.status
    assert "a call seeds torch's random numbers: every call leaves them in one state" in result.message


def with_own_generator(x):
    return x * torch.rand(x.shape, generator=torch.Generator().manual_seed(3))


def with_fork(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return x * torch.rand(x.shape)


def with_numpy_generator(x):
    return x * float(np.random.default_rng(3).random())


def dropout(x):
    return torch.nn.functional.dropout(x, 0.5)


def in_default_dtype(x):
    """Does not take another default dtype."""
    return torch.eye(3) @ x


HONEST = [torch.sin, dropout, with_own_generator, with_fork, with_numpy_generator, in_default_dtype]


@each("op", HONEST)
def test_an_op_that_leaves_everything_passes(op):
    result = result_of(op)

    assert ("passed", "") == (result.status, result.message)


def test_an_op_that_does_not_take_another_default_dtype_is_checked_for_the_rest():
    def op(x):
        torch.set_num_threads(3)
        return in_default_dtype(x)

    with settings.kept():
        torch.set_num_threads(3)
        message = result_of(op).message

    assert "a call that finds other settings: the process is left changed: number of threads is 3, and was 2" in message
