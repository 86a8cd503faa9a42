"""A rule that native nodes call by themselves, of an op whose reference computes the other gradients."""

import sys

import pytest
import torch
from torch import Tensor

from custom_autograd import GradientError, custom_op
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)

callers = []


@custom_op("sole::weighted", reference=True)
def weighted(x: Tensor, index: Tensor, weight: Tensor, power: int = 2) -> Tensor:
    return x[index] * weight**power


@weighted.register_grad("x")
def _(grad, x, index, weight, power):
    callers.append(sys._getframe(1).f_code.co_name)
    return torch.zeros_like(x).index_add(0, index, grad * weight**power)


def tensors(*requiring: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {
        "x": torch.randn(5, dtype=torch.float64, generator=generator),
        "index": torch.tensor([4, 0, 0]),
        "weight": torch.randn(3, dtype=torch.float64, generator=generator),
    }
    for name in requiring:
        found[name].requires_grad_()
    return found


def gradients(values: dict[str, Tensor], *wanted: str) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients by the op, whose kind of call is known already, and those of its reference."""
    inputs = [values[name] for name in wanted]
    weighted(**values), weighted(**values)
    ours, theirs = weighted(**values), weighted.__wrapped__(**values)
    callers.clear()
    return [list(torch.autograd.grad(out.square().sum(), inputs)) for out in (ours, theirs)]


@pytest.mark.parametrize("requiring", [("x",), ("x", "weight")])
def test_the_rule_is_called_by_itself_where_its_gradient_is_all_that_is_needed(requiring):
    ours, theirs = gradients(tensors(*requiring), "x")
    torch.testing.assert_close(ours, theirs)
    assert callers == ["_engine_run_backward"]  # no generated function


@pytest.mark.parametrize("wanted", [("weight",), ("x", "weight"), ("weight", "x")])
def test_the_reference_computes_the_others(wanted):
    ours, theirs = gradients(tensors("x", "weight"), *wanted)
    torch.testing.assert_close(ours, theirs)
    assert len(callers) == ("x" in wanted)
    assert "_engine_run_backward" not in callers


def test_a_rule_that_is_not_asked_is_not_called():
    ours, theirs = gradients(tensors("weight"), "weight")
    torch.testing.assert_close(ours, theirs)
    assert callers == []


def test_all_orders_of_derivatives():
    values = tensors("x", "weight")
    assert torch.autograd.gradgradcheck(
        lambda x, weight: weighted(x, values["index"], weight), (values["x"], values["weight"])
    )


def test_what_the_rule_returns_is_read_and_its_errors_name_it():
    @custom_op("sole::wrong", reference=True, replace=True)
    def wrong(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    wrong.register_grad("x")(lambda grad, y: (grad * y)[:1])
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    wrong(x, y), wrong(x, y)
    with pytest.raises(GradientError, match="sole::wrong: the gradient of 'x' has the wrong shape"):
        wrong(x, y).sum().backward()


def test_the_gradients_of_an_op_with_a_list_are_those_of_its_reference():
    @custom_op("sole::listed", reference=True, replace=True)
    def listed(xs: list[Tensor], weight: Tensor) -> Tensor:
        return (xs[0] + xs[1]) * weight

    listed.register_grad("weight")(lambda grad, xs: grad * (xs[0] + xs[1]))
    xs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    weight = torch.randn(3, requires_grad=True)
    for _ in range(3):
        out = listed(xs, weight)
    ours = torch.autograd.grad(out.square().sum(), [*xs, weight])
    theirs = torch.autograd.grad(((xs[0] + xs[1]) * weight).square().sum(), [*xs, weight])
    torch.testing.assert_close(ours, theirs)
