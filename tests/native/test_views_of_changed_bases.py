"""A view whose base has come to carry a gradient or a tangent after it carries one too, in every kind of call."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from tables import each
from torch import Tensor

from custom_autograd import GradientError, custom_op

pytestmark = pytest.mark.usefixtures("both_calls")


def by_name():
    op = custom_op("changed_bases::by_name", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)
    op.register_backward(lambda grad: grad * 2)
    return op


def drop_in():
    op = custom_op("changed_bases::drop_in", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)
    op.register_autograd(lambda ctx, grad: grad * 2)
    return op


def by_reference():
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    return custom_op("changed_bases::by_reference", doubled, reference=True, replace=True)


def of_a_list():
    op = custom_op("changed_bases::of_a_list", lambda xs: xs[0] * 2, schema="(Tensor[] xs) -> Tensor", replace=True)
    op.register_backward(lambda grad: [grad * 2])
    return lambda x: op([x])


def writing(*, has_rule):
    def multiply(x: Tensor, y: Tensor) -> None:
        x.mul_(y)

    op = custom_op("changed_bases::writing", multiply, mutates_args=("x",), replace=True)
    if has_rule:
        op.register_backward(lambda grad, y: {"x": grad * y, "y": None})
    return op


OPS = each("make", [by_name, drop_in, by_reference, of_a_list])


def warmed(call, *shapes):
    for _ in range(4):
        call(*(torch.ones(shape) for shape in shapes))
    return call


def filled(weight):
    """A view of a buffer, and the buffer, which is filled after the view was made."""
    buffer = torch.zeros(4)
    view = buffer[:2]
    buffer.copy_(weight)
    return view, buffer


@OPS
def test_a_view_of_a_buffer_that_is_filled_later(make):
    call, weight = warmed(make(), 2), torch.tensor([1.0, 2, 3, 4], requires_grad=True)
    result = call(filled(weight * weight)[0])

    assert [4, 8, 0, 0] == torch.autograd.grad(result.sum(), weight)[0].tolist()


@OPS
def test_a_view_of_a_leaf_that_was_made_without_gradients(make):
    call, leaf = warmed(make(), 2), torch.ones(4, requires_grad=True)
    with torch.no_grad():
        view = leaf[:2]

    assert call(view).requires_grad == (view * 2).requires_grad is True


@OPS
def test_the_tangent_of_a_view_of_a_buffer_that_is_filled_later(make):
    call = warmed(make(), 2)
    with forward_ad.dual_level():
        view, _ = filled(forward_ad.make_dual(torch.ones(4), torch.full((4,), 5.0)))

        assert [10, 10] == forward_ad.unpack_dual(call(view)).tangent.tolist()


def test_an_op_writes_to_such_a_view():
    op, weight = warmed(writing(has_rule=True), 2, 2), torch.ones(4, requires_grad=True)
    view, buffer = filled(weight * weight)
    op(view, torch.full((2,), 3.0))

    assert [6, 6, 2, 2] == torch.autograd.grad(buffer.sum(), weight)[0].tolist()


def test_an_op_without_a_backward_does_not_write_to_such_a_view():
    op = warmed(writing(has_rule=False), 2, 2)
    view, _ = filled(torch.ones(4, requires_grad=True) * 2)

    with pytest.raises(GradientError, match="has no backward"):
        op(view, torch.full((2,), 3.0))
