"""The check `saved` fails a forward that saves for nothing, beside save_for_backward, or unsafely."""

import torch
from tables import each
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample

result_of = verdict("saved", lambda make: [Sample(make(4, 3), make(4, 3))])


class Product(Function):
    """y = x w, differentiated right."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


class Added(Product):
    """y = x + w saves both and reads none."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x + w

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


class ReadsShape(Added):
    """y = x + w, where w may be broadcast."""

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad.sum_to_size(x.shape), grad.sum_to_size(w.shape)


class OnCtx(Product):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.factors = {"scale": torch.full((2,), 1.0)}
        return x * w


class AsData(Product):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x.data, w)
        return x * w


class ReadsSign(Product):
    """y = |x| w: of x only the sign is read for x, and its size for w."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.abs() * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w * x.sign(), grad * x.abs()


class SecondOrderOnly(Function):
    """Adds to the gradient what is zero and has a derivative."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x + w

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad + grad * (x * x - (x * x).detach()), grad


@custom_op("faults_saved::beside_a_fixed_output", outputs=("sign", "square"), non_differentiable=("sign",))
def beside_a_fixed_output(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x * w).sign(), (x * w).square()


@beside_a_fixed_output.register_backward
def _(grad_square, x, w):
    return {"x": 2 * grad_square * x * w * w, "w": 2 * grad_square * x * x * w}


@custom_op("faults_saved::by_name")
def by_name(x: Tensor, w: Tensor) -> Tensor:
    return x * w


@by_name.register_backward
def _(grad, x, w):
    return {"x": grad * w, "w": grad * x}


@torch.library.custom_op("faults_saved::library", mutates_args=())
def library(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def _keep_on_ctx(ctx, inputs, output):
    ctx.inputs = inputs


def _backward_from_ctx(ctx, grad):
    x, w = ctx.inputs
    return grad * w, grad * x


library.register_autograd(_backward_from_ctx, setup_context=_keep_on_ctx)


@each("op", [Product, ReadsSign, by_name, beside_a_fixed_output])
def test_what_is_saved_and_read_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


def test_the_bytes_saved_are_kept():
    assert {"bytes saved": 192.0} == result_of(Product).measures


def test_tensor_read_by_the_second_order_only_is_a_number():
    result = result_of(SecondOrderOnly)

    assert "passed" == result.status
    assert {"bytes saved": 96.0, "bytes saved for second order only": 96.0} == result.measures


def test_tensor_read_for_its_shape_only_is_a_number():
    result = result_of(ReadsShape)

    assert "passed" == result.status
    assert {"bytes saved": 192.0, "bytes saved for their shape only": 192.0} == result.measures


def test_tensor_on_ctx_fails():
    result = result_of(OnCtx)

    assert "failed" == result.status
    assert "ctx.factors holds a tensor of 8 bytes, expected every tensor in save_for_backward" == result.message


def test_tensors_on_ctx_of_a_library_op_fail():
    result = result_of(library)

    assert "failed" == result.status
    assert "ctx.inputs holds 2 tensors of 192 bytes, expected every tensor in save_for_backward" in result.message
    assert "'x' is edited in place before the backward, which does not notice" in result.message


def test_edit_in_place_that_is_not_noticed_fails():
    result = result_of(AsData)

    assert "failed" == result.status
    assert "'x' is edited in place before the backward, which does not notice: the gradient of 'w'[" in result.message


def test_composition_is_left_to_torch():
    result = result_of(torch.mul)

    assert "skipped" == result.status
    assert "up to the ops it is made of" in result.message


class SparseOnCtx(Product):
    @staticmethod
    def forward(ctx, x, w):
        ctx.matrix = torch.eye(2).to_sparse()
        return Product.forward(ctx, x, w)


def test_a_sparse_tensor_on_ctx_is_counted_by_its_shape():
    samples = [Sample(torch.ones(3).requires_grad_(), torch.ones(3).requires_grad_())]

    expected = "ctx.matrix holds a tensor of 16 bytes, expected every tensor in save_for_backward"
    assert expected == verdict("saved", samples)(SparseOnCtx).message
