"""The check `needs` fails a rule that computes what nobody needs, or gives another gradient where it is alone."""

import torch
from tables import each
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample

result_of = verdict("needs", lambda make: [Sample(make(4, 3), make(4, 3))])


class Product(Function):
    """Computes both gradients always, as an op may."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


class ShiftsGradients(Product):
    """Returns the needed gradients one after the other, wherever they belong."""

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        found = [g for g, is_needed in zip((grad * x, grad * w), ctx.needs_input_grad, strict=True) if is_needed]
        return (found[1], found[0]) if len(found) == 2 else (found[0], found[0])


class OtherInGradMode(Product):
    """Wrong where only x needs a gradient and the backward is recorded."""

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w * (2 if torch.is_grad_enabled() and not ctx.needs_input_grad[1] else 1), grad * x


class NumpyProduct(Product):
    """A backward that cannot be recorded: other checks report it."""

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return torch.from_numpy(grad.numpy() * w.numpy()), torch.from_numpy(grad.numpy() * x.numpy())


@custom_op("faults_needs::asks")
def asks(x: Tensor, w: Tensor) -> Tensor:
    return x * w


@asks.register_backward
def _(grad, x, w, needs):
    return {"x": grad * w if needs.x else None, "w": grad * x if needs.w else None}


@custom_op("faults_needs::forgets")
def forgets(x: Tensor, w: Tensor) -> Tensor:
    return x * w.exp()


@forgets.register_backward
def _(grad, x, w, needs):
    w_grad = grad * x * w.exp()
    return {"x": grad * w.exp() if needs.x else None, "w": w_grad}


@custom_op("faults_needs::fused")
def fused(x: Tensor, w: Tensor) -> Tensor:
    return x * w


@fused.register_backward
def _(grad, x, w, needs):
    both = grad * torch.stack([w, x])
    return {"x": both[0] if needs.x else None, "w": both[1] if needs.w else None}


@custom_op("faults_needs::per_input")
def per_input(x: Tensor, w: Tensor) -> Tensor:
    return x * w


@per_input.register_grad("x")
def _(grad, w):
    return grad * w


@per_input.register_grad("w")
def _(grad, x):
    return grad * x


@custom_op("faults_needs::recomputed", reference=True)
def recomputed(x: Tensor, w: Tensor) -> Tensor:
    """The backward of x runs the reference, whose last product looks like the gradient of w, and is not used."""
    return x.sin() * w


@recomputed.register_grad("w")
def _(grad, x):
    return grad * x.sin()


def name_of(op):
    return getattr(op, "__name__", str(op))


@each("op", [asks, fused, per_input, recomputed, Product, torch.mul])
def test_backward_that_does_what_it_promises_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


def test_work_that_nobody_promised_to_leave_out_is_a_number():
    measures = result_of(Product).measures

    assert {"operations wasted for 'x' alone": 1.0, "operations wasted for 'w' alone": 1.0} == measures


def test_rule_that_does_not_ask_fails():
    result = result_of(forgets)

    assert "failed" == result.status
    assert (
        "the gradient of 'w' is computed (aten::mul.Tensor of shape (4, 3)) although only 'x' needs one"
        == result.message
    )
    assert "the rule does not ask needs.w" == result.cause


def test_gradient_in_the_place_of_another_fails():
    result = result_of(ShiftsGradients)

    assert "failed" == result.status
    assert "only 'x' needs a gradient: gradient of 'x'[1, 2] = " in result.message
    assert "a gradient is returned in the place of another" == result.cause


def test_another_gradient_in_grad_mode_fails():
    result = result_of(OtherInGradMode)

    assert "failed" == result.status
    assert "only 'x' needs a gradient, with create_graph=True: gradient of 'x'[" in result.message
    assert "(ratio 2), by a plain call" in result.message


def test_a_backward_that_cannot_be_recorded_is_not_judged():
    assert "passed" == result_of(NumpyProduct).status
