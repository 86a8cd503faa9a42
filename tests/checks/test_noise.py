"""A function that computes in float32 is distinguished from one in float64, at any point."""

import torch
from tables import each

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.differentiable import function_of
from custom_autograd.verification.harness.numerical import noise_of
from custom_autograd.verification.harness.targets import target_of


def product(x):
    return torch.nn.functional.silu(x.float()).to(x.dtype) * x


def loss(x):
    return (-(x[0, 0].float() + x[1, 2].float() + x[2, 4].float()) / 3).to(x.dtype)


def steep(x):
    return (1e3 * x).sin()


def kink(x):
    return (x - x.detach() + 3e-7).abs() + x


def noises(function):
    for seed in range(40):
        torch.manual_seed(seed)
        part = function_of(target_of(function), Sample(torch.randn(3, 5).requires_grad_()))
        yield noise_of(part, part.inputs)


@each("function", [product, loss])
def test_float32_is_noticed(function):
    assert min(noises(function)) > 1e-9


@each("function", [steep, kink])
def test_float64_is_not_taken_for_float32(function):
    assert max(noises(function)) == 0
