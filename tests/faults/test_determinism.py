"""The check `determinism` fails what draws without saying so, remembers calls, or depends on the grad mode."""

import itertools
import random

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd.schema.samples import Sample

COUNTER = itertools.count()
BUFFER = torch.zeros(4)
LAST = []


result_of = verdict("determinism", lambda make: [Sample(make(4))])


@torch.library.custom_op("faults_determinism::declared", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def declared(x: Tensor) -> Tensor:
    return x * torch.rand_like(x)


def counting(x):
    return x + next(COUNTER)


def drawing_elsewhere(x):
    return x * random.SystemRandom().random()


def reusing(x):
    return BUFFER.copy_(x)


def remembering(x):
    LAST.append(float(x.sum()))
    return x + (LAST[-1] != LAST[-2] if len(LAST) > 1 else 0)


def depending_on_grad_mode(x):
    return x * 2 if torch.is_grad_enabled() else x * 2.001


def test_equal_calls_pass():
    assert "passed" == result_of(torch.sin).status


def test_declared_random_numbers_pass():
    assert "passed" == result_of(declared).status


def test_counter_fails():
    result = result_of(counting)

    assert result.message.startswith("two equal calls differ: output 0[")
    assert "it is not deterministic, or it remembers a call" == result.cause


def test_random_numbers_from_elsewhere_fail():
    assert result_of(drawing_elsewhere).message.startswith("two equal calls differ: ")


def test_buffer_that_is_used_again_fails():
    result = result_of(reusing)

    assert result.message.startswith("a later call changes the result of an earlier one: ")
    assert "a buffer is reused" == result.cause


def test_memory_of_another_call_fails():
    result = result_of(remembering)

    assert "it differs after a call with other values: " in result.message
    assert "it remembers earlier calls" == result.cause


def test_value_that_depends_on_the_grad_mode_fails():
    assert result_of(depending_on_grad_mode).message.startswith("where grad mode is on: output 0[")
