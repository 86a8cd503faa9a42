"""The check `non_differentiable` fails an output that depends on an input and carries no gradient."""

import torch
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample

result_of = verdict("non_differentiable", lambda make: [Sample(make(4))])


class TwoPowers(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2, x**3

    @staticmethod
    def backward(ctx, square, cube):
        (x,) = ctx.saved_tensors
        return 2 * square * x + 3 * cube * x**2


class CubeHidden(TwoPowers):
    @staticmethod
    def forward(ctx, x):
        square, cube = TwoPowers.forward(ctx, x)
        ctx.mark_non_differentiable(cube)
        return square, cube


def signs(x):
    return x * 2, x.detach().sign()


def test_outputs_with_gradients_pass():
    assert "passed" == result_of(TwoPowers).status


def test_output_that_is_marked_and_depends_on_an_input_fails():
    result = result_of(CubeHidden)

    assert "output 1 depends on 'x' but carries no gradient: it is silently zero" == result.message
    assert "it is marked non-differentiable, detached, or no backward is registered" == result.cause


def test_output_that_is_constant_nearby_passes():
    assert "passed" == result_of(signs).status


def test_an_output_is_called_by_its_name_and_counted_among_all():
    @custom_op("faults_non_differentiable::order", outputs=("i", "scale"), non_differentiable=("scale",))
    def named(w: Tensor) -> tuple[Tensor, Tensor]:
        return w.argsort(-1), w.square()

    @custom_op("faults_non_differentiable::unnamed", non_differentiable=("output_1",))
    def unnamed(w: Tensor) -> tuple[Tensor, Tensor]:
        return w.argsort(-1), w.square()

    by_check = [
        [verdict(name, [Sample(torch.randn(3))])(op).message for name in ("non_differentiable", "gradcheck")]
        for op in (named, unnamed)
    ]

    assert [
        2 * ["'scale' depends on 'w' but carries no gradient: it is silently zero"],
        2 * ["output 1 depends on 'w' but carries no gradient: it is silently zero"],
    ] == by_check


def test_a_written_input_that_is_declared_to_carry_no_gradient_passes():
    @custom_op("faults_non_differentiable::tracked", mutates_args=("mean",), non_differentiable=("mean",))
    def tracked(x: Tensor, mean: Tensor) -> Tensor:
        mean.lerp_(x.mean(0), 0.1)
        return 2 * x

    tracked.register_backward(lambda grad: {"x": 2 * grad})
    samples = [Sample(torch.randn(4, 3, requires_grad=True), torch.randn(3))]

    assert {"passed"} == {verdict(name, samples)(tracked).status for name in ("non_differentiable", "gradcheck")}


def softmax_with_hidden(name, *, once_differentiable):
    @custom_op(f"faults_non_differentiable::{name}", outputs=("y", "lse"), hidden=("lse",), non_differentiable=("lse",))
    def softmax(x: Tensor) -> tuple[Tensor, Tensor]:
        lse = torch.logsumexp(x, -1, keepdim=True)
        return torch.exp(x - lse), lse

    @softmax.register_backward(once_differentiable=once_differentiable)
    def _(grad_y, x, lse):
        y = torch.exp(x - lse)
        return y * (grad_y - (grad_y * y).sum(-1, keepdim=True))

    return softmax


def test_a_hidden_output_without_a_gradient_passes_if_there_is_no_second_derivative():
    """It carries a gradient in second derivatives alone, and would be silently a constant there."""
    samples = [Sample(torch.randn(2, 3, dtype=torch.float64, requires_grad=True))]
    once = softmax_with_hidden("once", once_differentiable=True)
    twice = softmax_with_hidden("twice", once_differentiable=False)

    assert ["passed", "failed"] == [verdict("gradcheck", samples)(op).status for op in (once, twice)]
