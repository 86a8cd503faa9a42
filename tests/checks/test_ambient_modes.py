"""A report does not depend on the modes in which `check` is called: default device, inference mode, grad mode."""

import pytest
import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op


@custom_op("ambient::scaled")
def scaled(x: Tensor, by: Tensor) -> Tensor:
    return x * by.to(x.device)


@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)


@scaled.register_backward
def _(grad, x, by):
    return {"x": grad * by, "by": 1.5 * (grad * x).sum()}  # the gradient of 'by' is wrong


def samples(make):
    yield Sample(make(2, 3), make.tensor(2.0).requires_grad_())
    yield Sample(make(2, 3, low=0.5, high=1.0), make())


MODES = {
    "default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
}
CHECKS = ["quick", "gradcheck", "sizes", "low_precision", "explore=1s", "special_values"]


def found(given):
    report = check(scaled, given, checks=CHECKS, raise_on_failure=False, isolated=False)
    return [(one.check, one.sample, one.status) for one in report.results]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_findings_are_the_same_in_every_mode(mode):
    outside = found(samples)
    with mode():
        inside = found(samples)

    assert "failed" in {status for *_, status in outside}
    assert outside == inside


def test_tensors_of_inference_mode_are_samples():
    outside = found([Sample(torch.ones(2, 3, requires_grad=True), torch.ones((), requires_grad=True))])
    with torch.inference_mode():
        inside = found([Sample(torch.ones(2, 3, requires_grad=True), torch.ones((), requires_grad=True))])

    assert outside == inside
