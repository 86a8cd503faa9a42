"""Reverse mode over the whole table, by value: eager, torch.func, batched, of first, second and third order."""

import pytest
import torch
from tables import each
from torch.func import grad, jacrev, vjp
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from custom_autograd import GradientError
from ops import TABLE

ROWS = each("row", TABLE.values(), ids=TABLE)
TWICE = {name: row for name, row in TABLE.items() if row.has_second_order}
TWICE_ROWS = each("row", TWICE.values(), ids=TWICE)


def gradients(f, inputs, **options):
    return torch.autograd.grad(f(*inputs), inputs, **options)


def argnums(row):
    return tuple(range(len(row.shapes)))


def each_alone(f, row):
    """The gradient of each input where no other requires one."""
    found = []
    for wanted in argnums(row):
        inputs = [t.requires_grad_(i == wanted) for i, t in enumerate(row.inputs())]
        found += torch.autograd.grad(row.loss(f)(*inputs), inputs[wanted])
    return found


def pulled_back(f, row):
    outputs, pull = vjp(f, *row.inputs())
    return outputs, pull(tuple(output.cos() for output in outputs))


def checkpointed(f, row):
    inputs = row.inputs(requires_grad=True)
    return gradients(row.loss(lambda *tensors: checkpoint(f, *tensors, use_reentrant=False)), inputs)


def with_hooks(f, row):
    """Hooks may replace everything that is saved."""
    inputs = row.inputs(requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        loss = row.loss(f)(*inputs)
    return torch.autograd.grad(loss, inputs)


ONCE = {
    "values": lambda f, row: f(*row.inputs()),
    "backward": lambda f, row: gradients(row.loss(f), row.inputs(requires_grad=True)),
    "backward of one input": each_alone,
    "checkpoint": checkpointed,
    "saved tensor hooks": with_hooks,
    "func.grad": lambda f, row: grad(row.loss(f), argnums(row))(*row.inputs()),
    "func.vjp": pulled_back,
    "func.jacrev": lambda f, row: jacrev(f, argnums(row))(*row.inputs()),
}


@ROWS
@each("way", ONCE)
def test_values_and_gradients(row, way):
    assert_close(ONCE[way](row.op, row), ONCE[way](row.reference, row))


def squares(tensors):
    return sum((one**2).sum() for one in tensors)


def grad_of_grad(f, row):
    return grad(lambda *x: squares(grad(row.loss(f), argnums(row))(*x)), argnums(row))(*row.inputs())


def double_backward(f, row):
    inputs = row.inputs(requires_grad=True)
    return torch.autograd.grad(squares(gradients(row.loss(f), inputs, create_graph=True)), inputs)


def force_matching(f, row):
    """A loss that contains torch.func.grad is differentiated by plain autograd, as in learning forces."""
    inputs = row.inputs(requires_grad=True)
    return torch.autograd.grad(squares(grad(row.loss(f), argnums(row))(*inputs)), inputs)


def third_order(f, row):
    first, *rest = row.inputs()
    return grad(lambda x: grad(lambda y: grad(lambda z: row.loss(f)(z, *rest))(y).sum())(x).sum())(first)


@TWICE_ROWS
@each("way", [grad_of_grad, double_backward, force_matching, third_order])
def test_higher_orders(row, way):
    assert_close(way(row.op, row), way(row.reference, row))


@TWICE_ROWS
def test_gradcheck_and_gradgradcheck(row):
    assert torch.autograd.gradcheck(row.op, row.inputs(requires_grad=True), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(row.op, row.inputs(requires_grad=True))


def test_a_second_derivative_of_a_once_differentiable_backward_raises():
    row = TABLE["once differentiable"]

    with pytest.raises(GradientError, match="once-differentiable"):
        grad(lambda x: grad(row.loss(row.op))(x).sum())(*row.inputs())
