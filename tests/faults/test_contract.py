"""The check `contract` fails gradients that only fit because the engine repairs them."""

import torch
from tables import each
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample

result_of = verdict("contract", lambda make: [Sample(make(4, 3), make(3))])


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class NotReduced(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


class OtherDtype(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return (grad * w).double(), (grad * x).sum(0)


class InDtypeOfResult(Scaled):
    @staticmethod
    def forward(ctx, x, w):
        return Scaled.forward(ctx, x, w).bfloat16()

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


class OneMore(Scaled):
    @staticmethod
    def backward(ctx, grad):
        return (*Scaled.backward(ctx, grad), None)


class OneTensorMore(Scaled):
    @staticmethod
    def backward(ctx, grad):
        return (*Scaled.backward(ctx, grad), grad)


class OtherShape(Scaled):
    @staticmethod
    def backward(ctx, grad):
        return grad.sum(0), (grad * ctx.saved_tensors[0]).sum(0)


class AnyNumber(Function):
    @staticmethod
    def forward(ctx, *args):
        ctx.save_for_backward(*args)
        return args[0] * args[1]

    backward = OtherDtype.backward


FAULTS = {
    OtherShape: (
        "the engine refuses what the backward returns: RuntimeError: Function OtherShapeBackward returned an invalid "
        "gradient at index 0 - got [3] but expected shape compatible with [4, 3]",
        "",
    ),
    AnyNumber: (
        "the backward returns a gradient of 'args[0]' with dtype torch.float64, expected torch.float32: "
        "the engine repairs it, or fails",
        "it is computed in torch.float64; cast it to the dtype of its input",
    ),
    OtherDtype: (
        "the backward returns a gradient of 'x' with dtype torch.float64, expected torch.float32: "
        "the engine repairs it, or fails",
        "it is computed in torch.float64; cast it to the dtype of its input",
    ),
    OneTensorMore: (
        "the backward returns 3 gradients for 2 arguments",
        "an argument was removed, and its gradient was not",
    ),
}


@torch.library.custom_op("faults_contract::scaled", mutates_args=())
def scaled(x: Tensor, w: Tensor) -> Tensor:
    return x * w


scaled.register_autograd(
    lambda ctx, grad: (*Scaled.backward(ctx, grad), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@each("function", [Scaled, NotReduced, InDtypeOfResult, OneMore])
def test_gradients_that_fit_and_what_pytorch_lets_a_function_return_pass(function):
    assert "passed" == result_of(function).status


class OfSparse(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x.to_dense() + y

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


def test_dense_gradient_of_a_sparse_input_of_a_function_passes():
    samples = [Sample(torch.eye(3).to_sparse().requires_grad_(), torch.ones(3, 3).requires_grad_())]

    assert "passed" == verdict("contract", samples)(OfSparse).status


def in_another_order(w, x):
    """A plain function, whose arguments are not those of the Function that it calls."""
    return Scaled.apply(x.mT.exp(), w.sum(0))


def test_gradients_of_a_function_inside_another_are_not_taken_for_those_of_its_arguments():
    samples = [Sample(torch.randn(2, 3).requires_grad_(), torch.randn(3, 4).requires_grad_())]

    assert "passed" == verdict("contract", samples)(in_another_order).status


@each("fault", FAULTS)
def test_gradient_that_does_not_fit_fails(fault):
    result = result_of(fault)

    assert FAULTS[fault] == (result.message, result.cause)


def test_gradients_of_an_op_of_torch_library_are_counted_and_its_backward_is_as_before():
    before = scaled._backward_fn

    assert "the backward returns 3 gradients for 2 arguments" == result_of(scaled).message
    assert before is scaled._backward_fn


@each("name", ["index", "bias"])
def test_gradient_of_what_can_have_none_of_an_op_declared_here_fails(name):
    op = custom_op(
        "faults_contract::picked",
        lambda x, index, bias: x[index],
        schema="(Tensor x, Tensor index, Tensor? bias=None) -> Tensor",
        replace=True,
    )
    op.register_backward(lambda grad, x, index: {"x": torch.zeros_like(x).index_add(0, index, grad), name: grad})
    (result,) = op.check(
        [Sample(torch.rand(3), torch.tensor([0, 2]))], checks=["contract"], raise_on_failure=False
    ).results

    assert "failed" == result.status
    assert f"the backward returns a gradient for '{name}', which has none in this call" in result.message
    assert "what is None in a call, an integer or a bool has no gradient" == result.cause


def test_gradient_of_what_may_have_one_and_is_not_needed_passes():
    op = custom_op("faults_contract::honest", lambda x, w: x * w, schema="(Tensor x, Tensor w) -> Tensor")
    op.register_backward(lambda grad, x, w: {"x": grad * w, "w": grad * x})
    (result,) = op.check([Sample(torch.rand(3), torch.rand(3))], checks=["contract"]).results

    assert "passed" == result.status


def test_backward_that_cannot_be_watched_is_skipped():
    assert "its backward cannot be watched: it is not one of Python's" in result_of(torch.mul).message
