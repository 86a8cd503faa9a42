"""Ops of torch.library without a backward, whose kernels refuse tensors that require a gradient."""

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample


@torch.library.custom_op("inference_only::scale_", mutates_args={"x"})
def scale_(x: Tensor, by: Tensor) -> None:
    if x.requires_grad or by.requires_grad:
        raise RuntimeError("for inference only")
    x.mul_(by)


@torch.library.custom_op("inference_only::flat_scale_", mutates_args={"x"})
def flat_scale_(x: Tensor, by: Tensor) -> None:
    if x.requires_grad or by.requires_grad:
        raise RuntimeError("for inference only")
    x.mul_(by.as_strided(by.shape, (by.shape[1], 1)))


@torch.library.custom_op("inference_only::scaled", mutates_args=())
def scaled(x: Tensor, by: Tensor) -> Tensor:
    if x.requires_grad or by.requires_grad:
        raise RuntimeError("for inference only")
    return x * by


@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def result_of(op, name, **options):
    return verdict(name, lambda make: [Sample(make(2, 3, **options), make(2, 3, **options))])(op)


@each("name", ["layouts", "explore", "compile"])
def test_an_op_for_inference_is_looked_at_without_gradients(name):
    assert "passed" == result_of(scale_, name, requires_grad=False).status


@each("name", ["contract", "cotangents", "reuse", "needs"])
def test_checks_of_gradients_have_nothing_to_look_at(name):
    assert "skipped" == result_of(scale_, name, requires_grad=False).status


def test_what_else_is_wrong_is_found():
    assert "failed" == result_of(flat_scale_, "layouts", requires_grad=False).status


def test_an_op_with_a_backward_may_not_refuse_them():
    assert "failed" == result_of(scaled, "layouts").status
