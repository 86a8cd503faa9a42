"""Ops that write to their arguments: versions, views, gradients, and refusals where a gradient would be wrong."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from custom_autograd import GradientError, custom_op


def array(x):
    return x.detach().numpy()


def rand(*shape, requires_grad=True):
    return torch.rand(*(shape or (3,)), dtype=torch.float64, requires_grad=requires_grad)


@custom_op("mutation::scale_", mutates_args=("x",))
def scale_(x: Tensor, w: Tensor) -> None:
    array(x)[...] *= array(w)


@scale_.register_grad("x")
def _(grad, w):
    return grad * w


@custom_op("mutation::square_", mutates_args=("x",))
def square_(x: Tensor) -> None:
    array(x)[...] **= 2


@custom_op("mutation::exp_", mutates_args=("x",))
def exp_(x: Tensor) -> Tensor:
    np.exp(array(x), out=array(x))
    return torch.from_numpy(np.sum(array(x), keepdims=True).reshape(1))


exp_.register_fake(lambda x: x.new_empty(1))


@exp_.register_backward
def _(grad_x, grad_output, x):
    """`x` is the value after the call."""
    return (grad_x + grad_output) * x


scale_.register_grad("w")(lambda grad, w: grad * 0)


def test_the_callers_tensor_is_written_to():
    x = rand(requires_grad=False)
    expected = x * 2
    assert scale_(x, torch.full((3,), 2.0, dtype=x.dtype)) is None

    assert torch.equal(expected, x)


def test_the_version_is_counted_once_per_call():
    x = rand(requires_grad=False)
    before = x._version
    scale_(x, torch.ones(3, dtype=x.dtype))
    scale_(x, torch.ones(3, dtype=x.dtype))

    assert before + 2 == x._version


@pytest.mark.parametrize("op", [square_, exp_], ids=["without a rule", "with a rule"])
def test_a_leaf_is_refused_before_it_is_written_to(op):
    x = rand()
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match=r"leaf|would be wrong"):
        op(x)

    assert torch.equal(before, x.detach())
    assert 0 == x._version


def test_without_a_rule_a_gradient_that_would_be_wrong_is_refused():
    x = rand()
    y = x * 1
    before = y.detach().clone()
    with pytest.raises(GradientError, match="'x' requires a gradient, which would be wrong"):
        square_(y)

    assert torch.equal(before, y.detach())


def test_without_a_rule_no_gradient_is_fine():
    x = rand(requires_grad=False)
    leaf = rand()
    expected = x**2, leaf.detach() ** 2
    square_(x)
    with torch.no_grad():
        square_(leaf)

    assert torch.equal(expected[0], x)
    assert torch.equal(expected[1], leaf.detach())
    assert 1 == leaf._version


def test_a_value_that_autograd_saved_before_the_write_is_missed():
    z = rand() * 1
    y = z * z
    exp_(z)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_value_that_a_rule_saved_is_missed_too():
    z = rand() * 1
    w = rand() * 1
    scale_(z, w)
    w.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_write_to_a_view_of_a_leaf_is_refused():
    x = rand(4)
    with pytest.raises(RuntimeError, match="leaf"):
        exp_(x[1:])


@pytest.mark.parametrize("functional", [torch.func.jacrev, torch.func.jacfwd])
def test_functional_derivatives_of_a_write_are_right(functional):
    def f(x):
        y = x * 1
        exp_(y)
        return y * 2

    x = rand(requires_grad=False)

    assert torch.allclose(torch.diag(2 * x.exp()), functional(f)(x))


def test_a_batch_of_writes_is_right():
    def f(x):
        y = x * 1
        exp_(y)
        return y

    x = rand(4, 3, requires_grad=False)

    assert torch.allclose(x.exp(), torch.vmap(f)(x))


@custom_op("mutation::update_", mutates_args=("values",))
def update_(values: list[Tensor], step: float = 1.0) -> None:
    for value in values:
        array(value)[...] += step


@custom_op("mutation::double_", mutates_args=("values",))
def double_(values: list[Tensor]) -> None:
    for value in values:
        array(value)[...] *= 2


@double_.register_backward
def _(grad):
    return {"values": [2 * one for one in grad]}


def test_a_list_is_written_to():
    values = [torch.zeros(2), torch.zeros(3)]
    update_(values, 2.0)

    assert [[2.0, 2.0], [2.0, 2.0, 2.0]] == [value.tolist() for value in values]
    assert [1, 1] == [value._version for value in values]


def test_a_list_with_a_tensor_that_requires_a_gradient_is_refused():
    with pytest.raises(GradientError, match="'values' requires a gradient"):
        update_([torch.zeros(2), rand() * 1])


def test_compiled_writes_are_right():
    def f(x):
        y = x * 1
        exp_(y)
        return (y * 2).sum()

    x = rand()
    (expected,) = torch.autograd.grad(f(x), x)
    (found,) = torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(x), x)

    assert torch.allclose(expected, found)


def test_gradients_flow_through_a_compiled_write_to_an_argument():
    def f(y, factor):
        exp_(y)
        return y * factor

    def gradients(function):
        y = x * 1
        result = function(y, factor)
        return torch.autograd.grad((result * 3).sum() + (y * 2).sum(), (x, factor))

    x, factor = rand(), rand()
    expected = gradients(f)

    torch.testing.assert_close(gradients(torch.compile(f, backend="aot_eager", fullgraph=True)), expected)


def test_a_compiled_write_to_an_argument_is_seen_by_the_caller():
    def f(values):
        update_(values, 3.0)
        return values[0] * 2

    values = [torch.zeros(2), torch.zeros(3)]
    found = torch.compile(f, backend="aot_eager", fullgraph=True)(values)

    assert [6.0, 6.0] == found.tolist()
    assert [3.0, 3.0, 3.0] == values[1].tolist()


# --------------------------------------------------------------------------- tensors that are handed back, as out= does


@custom_op("mutation::into", schema="(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", mutates_args=("out",))
def into(x, *, out):
    array(out)[...] = array(x) * 2
    return out


def test_a_written_tensor_that_is_handed_back_is_the_callers_own():
    out = torch.zeros(2)

    assert into(torch.ones(2), out=out) is out
    assert [2.0, 2.0] == out.tolist()


def test_a_write_to_a_view_counts_the_version_of_the_base():
    base = rand(4) * 1
    squares = base * base
    exp_(base[1:])

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.sum().backward()


@custom_op("mutation::rotate_", mutates_args=("query", "key"))
def rotate_(query: Tensor, key: Tensor | None, angle: Tensor) -> None:
    for x in (query, key):
        if x is not None:
            array(x)[...] *= array(angle)


@rotate_.register_backward
def _(grad_query, grad_key, angle):
    return {"query": grad_query * angle, "key": None if grad_key is None else grad_key * angle, "angle": None}


def of_the_value_before(x):
    y = x * 1
    total = exp_(y)
    return y * 2, total


def through_the_base(x):
    base = x * 1
    exp_(base[1:])
    return base * 2


def through_a_view(x):
    base = x * 1
    view = base[1:]
    square = base[0] * 3
    exp_(base)
    return view * 2, square


def through_several_views(x):
    base = x * 1
    views = [base[:2], base[2:]]
    double_(views)
    return base**2, views[0] * 3


def beside_an_absent_argument(x):
    rotated = x * 1
    rotate_(rotated, None, torch.full((4,), 2.0, dtype=x.dtype))
    return rotated


@pytest.mark.parametrize(
    "f",
    [of_the_value_before, through_the_base, through_a_view, through_several_views, beside_an_absent_argument],
)
def test_gradients_of_both_orders_are_right(f):
    assert gradcheck(f, (rand(4),))
    assert gradgradcheck(f, (rand(4),))


def test_compiled_code_returns_the_very_input_that_it_writes_to():
    def f(x, w):
        scale_(x, w)
        scale_(x, w)
        return x

    x, w = rand(requires_grad=False), rand()
    expected = (x * w * w).detach()
    found = torch.compile(f, backend="aot_eager", fullgraph=True)(x, w)

    assert found is x
    assert x.requires_grad
    assert torch.equal(expected, x)
