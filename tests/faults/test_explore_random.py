"""Ops that draw random numbers are explored too: each call draws what the sample drew."""

import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.checks.explore import Explore


def result_of(target, samples=None):
    return check(target, samples, checks=[Explore(seconds=1.0)]).results[0]


def declare(name, scale_of_gradient):
    """Declare a dropout that may leave out the scale, and take away its mean."""

    @custom_op(f"faults_random::{name}", tags=torch.Tag.nondeterministic_seeded)
    def noisy(x: Tensor, p: float, is_scaled: bool = False, is_centered: bool = False) -> tuple[Tensor, Tensor]:
        kept = torch.rand(x.shape, dtype=x.dtype, device=x.device) >= p
        y = x * kept / (1 - p) if is_scaled else x * kept
        return y - y.mean() if is_centered else y, kept

    @noisy.register_backward
    def _(grad_output_0, output_1, p, is_scaled, is_centered):
        grad = grad_output_0 - grad_output_0.mean() if is_centered else grad_output_0
        return grad * output_1 * scale_of_gradient(p, is_scaled, is_centered)

    return noisy


def test_honest_op_is_explored_and_passes():
    honest = declare("honest", lambda p, is_scaled, is_centered: 1 / (1 - p) if is_scaled else 1)

    result = result_of(honest, lambda make: [Sample(make(3, 4), 0.25)])

    assert "passed" == result.status, result.message
    assert result.measures["judged"] > 20


def test_scale_that_two_flags_lose_together_is_found():
    faulty = declare("faulty", lambda p, is_scaled, is_centered: 1 / (1 - p) if is_scaled and not is_centered else 1)

    result = result_of(faulty, lambda make: [Sample(make(3, 4), 0.25)])

    assert "failed" == result.status
    assert "is_scaled=True, is_centered=True" in result.message


def test_function_of_torch_is_explored_and_passes():
    result = result_of(torch.nn.functional.dropout, [Sample(torch.randn(3, 4, requires_grad=True), 0.25)])

    assert "passed" == result.status, result.message
