"""Reverse mode over the whole table, by value: eager, torch.func, batched, of first, second and third order."""

import pytest
import torch
from tables import each
from torch.func import grad, jacrev, vjp
from torch.testing import assert_close

from custom_autograd import GradientError
from ops import TABLE

ROWS = each("row", TABLE.values(), ids=TABLE)
TWICE = {name: row for name, row in TABLE.items() if row.has_second_order}
TWICE_ROWS = each("row", TWICE.values(), ids=TWICE)


def gradients(f, inputs, **options):
    return torch.autograd.grad(f(*inputs), inputs, **options)


def argnums(row):
    return tuple(range(len(row.shapes)))


@ROWS
def test_values(row):
    assert_close(row.op(*row.inputs()), row.reference(*row.inputs()))


@ROWS
def test_backward(row):
    actual = gradients(row.loss(row.op), row.inputs(requires_grad=True))

    assert_close(actual, gradients(row.loss(row.reference), row.inputs(requires_grad=True)))


@ROWS
def test_backward_of_each_subset_of_inputs(row):
    for wanted in argnums(row):
        inputs = [t.requires_grad_(i == wanted) for i, t in enumerate(row.inputs())]
        expected = [t.requires_grad_(i == wanted) for i, t in enumerate(row.inputs())]

        actual = torch.autograd.grad(row.loss(row.op)(*inputs), inputs[wanted])
        assert_close(actual, torch.autograd.grad(row.loss(row.reference)(*expected), expected[wanted]))


@ROWS
def test_torch_func_grad(row):
    actual = grad(row.loss(row.op), argnums(row))(*row.inputs())

    assert_close(actual, grad(row.loss(row.reference), argnums(row))(*row.inputs()))


@ROWS
def test_vjp(row):
    outputs, pull = vjp(row.op, *row.inputs())
    expected_outputs, expected_pull = vjp(row.reference, *row.inputs())
    cotangents = tuple(output.cos() for output in expected_outputs)

    assert_close((outputs, pull(cotangents)), (expected_outputs, expected_pull(cotangents)))


@ROWS
def test_jacrev(row):
    assert_close(jacrev(row.op, argnums(row))(*row.inputs()), jacrev(row.reference, argnums(row))(*row.inputs()))


@TWICE_ROWS
def test_grad_of_grad(row):
    def penalty(f):
        return lambda *x: sum((g**2).sum() for g in grad(row.loss(f), argnums(row))(*x))

    actual = grad(penalty(row.op), argnums(row))(*row.inputs())
    assert_close(actual, grad(penalty(row.reference), argnums(row))(*row.inputs()))


@TWICE_ROWS
def test_double_backward(row):
    def penalty(f, inputs):
        return sum((g**2).sum() for g in gradients(f, inputs, create_graph=True))

    inputs, expected = row.inputs(requires_grad=True), row.inputs(requires_grad=True)
    actual = torch.autograd.grad(penalty(row.loss(row.op), inputs), inputs)
    assert_close(actual, torch.autograd.grad(penalty(row.loss(row.reference), expected), expected))


@TWICE_ROWS
def test_third_order(row):
    def third(f):
        return grad(lambda x: grad(lambda y: grad(lambda z: row.loss(f)(z, *rest))(y).sum())(x).sum())(first)

    first, *rest = row.inputs()
    assert_close(third(row.op), third(row.reference))


@TWICE_ROWS
def test_force_matching(row):
    """A loss that contains torch.func.grad is differentiated by plain autograd, as in learning forces."""

    def forces(f, inputs):
        found = grad(row.loss(f), argnums(row))(*inputs)
        return torch.autograd.grad(sum((force**2).sum() for force in found), inputs)

    assert_close(forces(row.op, row.inputs(requires_grad=True)), forces(row.reference, row.inputs(requires_grad=True)))


@TWICE_ROWS
def test_gradcheck_and_gradgradcheck(row):
    assert torch.autograd.gradcheck(row.op, row.inputs(requires_grad=True), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(row.op, row.inputs(requires_grad=True))


def test_a_second_derivative_of_a_once_differentiable_backward_raises():
    row = TABLE["once differentiable"]

    with pytest.raises(GradientError, match="once-differentiable"):
        grad(lambda x: grad(row.loss(row.op))(x).sum())(*row.inputs())
