"""The check `determinism` fails what draws without saying so, remembers calls, or depends on the grad mode."""

import itertools
import random

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import check, custom_op
from custom_autograd.schema.samples import Sample

COUNTER = itertools.count()
BUFFER = torch.zeros(4)
LAST = []


result_of = verdict("determinism", lambda make: [Sample(make(4))])


@torch.library.custom_op("faults_determinism::declared", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def declared(x: Tensor) -> Tensor:
    return x * torch.rand_like(x)


@custom_op("faults_determinism::dithered")
def dithered(x: Tensor, is_training: bool = False) -> Tensor:
    return x + torch.rand_like(x) if is_training or x.dtype == torch.bfloat16 else x * 2


@custom_op("faults_determinism::noisy")
def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    given = None if x.dtype == torch.float16 else generator
    return x + torch.rand(x.shape, generator=given, dtype=x.dtype)


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


def test_random_numbers_of_another_flag_fail():
    assert result_of(dithered).message.startswith(
        "is_training=True: it draws random numbers, which its schema does not"
    )


def test_random_numbers_of_another_dtype_fail():
    samples = [Sample(torch.ones(4), torch.Generator().manual_seed(1))]
    (result,) = check(noisy, samples, checks=["determinism"], isolated=False).results

    assert "in float16: it draws from torch's own generator, although it is given one" == result.message


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
