"""Autocast lowers what a rule of an op without a policy computes; gradients arrive in the dtypes of the inputs."""

import pytest
import torch
from torch import Tensor

from custom_autograd import GradientError, custom_op


@custom_op("rules_under_autocast::linear")
def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.mT


linear.register_fake(lambda x, weight: x.new_empty((*x.shape[:-1], weight.shape[0])))


@linear.register_backward
def _(grad, x, weight):
    return grad @ weight, grad.mT @ x


@custom_op("rules_under_autocast::total")
def total(xs: list[Tensor], weight: Tensor) -> Tensor:
    return sum(x * weight for x in xs)


total.register_fake(lambda xs, weight: torch.empty_like(weight))


@total.register_backward
def _(grad, xs, weight):
    return [grad @ weight for _ in xs], None


def grads_of(op, *arguments, is_inside, is_compiled):
    """The gradients of a call under autocast, after a backward there or outside of it."""
    leaves = torch.utils._pytree.tree_map(lambda x: x.clone().requires_grad_(), arguments)

    def loss(*values):
        return op(*values).float().square().sum()

    function = torch.compile(loss, backend="aot_eager", fullgraph=True) if is_compiled else loss
    with torch.autocast("cpu", torch.bfloat16):
        value = function(*leaves)
        if is_inside:
            value.backward()
    if not is_inside:
        value.backward()
    return [x.grad for x in torch.utils._pytree.tree_leaves(leaves)]


def by_torch(x, weight):
    return x @ weight.mT


@pytest.mark.parametrize(("is_inside", "is_compiled"), [(True, False), (True, True), (False, True)])
def test_gradients_are_those_of_an_op_of_torch(is_inside, is_compiled):
    torch.manual_seed(0)
    arguments = torch.randn(4, 3), torch.randn(2, 3)
    found = grads_of(linear, *arguments, is_inside=is_inside, is_compiled=is_compiled)
    expected = grads_of(by_torch, *arguments, is_inside=is_inside, is_compiled=is_compiled)

    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_gradients_of_a_list_are_cast_too():
    torch.manual_seed(0)
    xs, weight = [torch.randn(3, 3), torch.randn(3, 3)], torch.randn(3, 3)
    *found, none = grads_of(total, xs, weight, is_inside=True, is_compiled=False)

    assert [torch.float32] * 2 == [grad.dtype for grad in found]
    assert none is None
    expected = 2 * (xs[0] + xs[1]) * weight @ weight
    torch.testing.assert_close(found, [expected] * 2, rtol=0.05, atol=0.1)


def test_a_rule_that_returns_another_dtype_by_itself_is_refused():
    op = custom_op("rules_under_autocast::wide", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad: (2 * grad).double())
    x = torch.ones(3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = op(x)
        with pytest.raises(GradientError, match="wrong dtype"):
            y.sum().backward()
