"""The check `special_values` fails an op that swallows nan or inf, or spreads it."""

import torch
from verdicts import verdict

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.targets import Target, TargetArgument


def result_of(call):
    target = Target("faults::relu", call, call, (TargetArgument("x"),), reference=torch.relu, kernels={"": call})
    return verdict("special_values", lambda make: [Sample(make(5))])(target)


def propagating(x):
    return x.clamp(min=0)


def swallowing_nan(x):
    return torch.where(x > 0, x, torch.zeros_like(x))


def spreading(x):
    return torch.relu(x) + 0 * x.sum()


def test_propagation_as_in_the_reference_passes():
    assert "passed" == result_of(propagating).status


def test_swallowed_nan_fails():
    result = result_of(swallowing_nan)

    assert "numbers of 'x' with a nan: output 0[2] = 0, expected nan (ratio nan), by the reference" == result.message
    assert "a comparison or a clamp swallows it" == result.cause


def test_nan_that_spreads_fails():
    result = result_of(spreading)

    assert "numbers of 'x' with a nan: output 0[0] = nan, expected " in result.message
    assert "it spreads to elements that do not depend on it" == result.cause
