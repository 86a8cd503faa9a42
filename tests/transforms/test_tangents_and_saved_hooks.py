"""The hooks of a caller, those of a checkpoint too, see of a derived tangent only what its own derivative needs."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from tables import each
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from custom_autograd import custom_op

pytestmark = pytest.mark.usefixtures("both_calls")


def sine(x: Tensor) -> Tensor:
    return x.sin()


def by_name():
    op = custom_op("tangents::by_name", sine, replace=True)
    op.register_backward(lambda grad, x: grad * x.cos())
    return op


def by_reference():
    return custom_op("tangents::by_reference", sine, reference=True, replace=True)


def drop_in():
    op = custom_op("tangents::drop_in", sine, replace=True)
    op.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


def points():
    return torch.linspace(1, 5, 4, dtype=torch.float64)


def lossy():
    return saved_tensors_hooks(lambda tensor: tensor.round(), lambda kept: kept)


def by_func(op, x):
    return torch.func.jvp(op, (x,), (torch.ones_like(x),))[1]


def by_dual_level(op, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(op(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


OPS = each("make", [by_name, by_reference, drop_in])


@OPS
def test_a_derived_tangent_is_as_exact_under_lossy_hooks(make):
    op, x = make(), points()

    with lossy():
        torch.testing.assert_close(by_func(op, x), x.cos())


@OPS
@each("tangent_of", [by_func, by_dual_level])
@each("requires_grad", [False, True])
def test_a_derived_tangent_can_be_taken_within_a_checkpoint(make, tangent_of, requires_grad):
    op, x = make(), points().requires_grad_(requires_grad)
    tangent = checkpoint(lambda x: tangent_of(op, x), x, use_reentrant=False)

    torch.testing.assert_close(tangent, x.cos())
    if requires_grad:
        torch.testing.assert_close(torch.autograd.grad(tangent.sum(), x)[0], -x.sin())


def copying():
    return saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda kept: kept)


def leaving_torch():
    """Only a tensor of no transform has an array."""
    return saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), torch.from_numpy)


@OPS
@each("tangent_of", [by_func, by_dual_level])
@each("hooks", [copying, leaving_torch, allow_mutation_on_saved_tensors])
def test_the_derivative_of_a_tangent_has_what_hooks_have_packed(make, tangent_of, hooks):
    op, x = make(), points().requires_grad_()
    with hooks():
        tangent = tangent_of(op, x)
        with torch.no_grad():
            x.mul_(100)

        torch.testing.assert_close(torch.autograd.grad(tangent.sum(), x)[0], -points().sin())


@OPS
@each("tangent_of", [by_func, by_dual_level])
def test_a_changed_input_is_found_without_hooks(make, tangent_of):
    op, x = make(), points().requires_grad_()
    tangent = tangent_of(op, x)
    with torch.no_grad():
        x.mul_(100)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(tangent.sum(), x)


@OPS
@each("tangent_of", [by_func, by_dual_level])
def test_hooks_see_nothing_of_a_tangent_that_is_not_recorded(make, tangent_of):
    op, seen = make(), []
    with saved_tensors_hooks(seen.append, lambda kept: kept):
        tangent = tangent_of(op, points())
    with torch.no_grad():
        within = tangent_of(op, points().requires_grad_())

    assert not tangent.requires_grad
    assert not within.requires_grad
    assert [] == seen


def test_gradients_within_a_transform_have_no_graph_unless_it_is_asked_for():
    op, x = by_reference(), points().requires_grad_()
    y = op(x)

    def gradient(v):
        return torch.autograd.grad(y, x, v, retain_graph=True)[0]

    rows = torch.vmap(gradient)(torch.eye(4, dtype=torch.float64))
    pushed = torch.func.jvp(gradient, (torch.ones_like(y),), (torch.ones_like(y),))

    torch.testing.assert_close(rows, torch.diag(points().cos()))
    assert [False] * 3 == [one.requires_grad for one in (rows, *pushed)]


def test_a_reference_recomputes_as_exactly_in_a_backward_under_lossy_hooks():
    op, x = by_reference(), points().requires_grad_()
    y = op(x)

    with lossy():
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.cos())
