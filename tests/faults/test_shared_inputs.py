"""The check `shared_inputs` fails an op that treats one tensor given twice otherwise than two equal ones."""

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample


def result_of(op, *tensors):
    tensors = tensors or (torch.randn(3, 4), torch.randn(3, 4))
    return verdict("shared_inputs", [Sample(*tensors)])(op)


def product(x, y):
    return x * y


def kept_by_identity(x, y):
    found = {id(x): x * 2}
    found[id(y)] = y * 3
    return found[id(x)] + found[id(y)]


def refusing(x, y):
    if x is y:
        raise ValueError("two tensors are needed")
    return x * y


class OneGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y.exp()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        of_x = grad * y.exp()
        return of_x, of_x if x.data_ptr() == y.data_ptr() else grad * x * y.exp()


@custom_op("faults_shared::add_", mutates_args=("x",))
def add_(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def test_a_product_passes():
    assert "passed" == result_of(product).status
    assert "passed" == result_of(product, torch.randn(3, requires_grad=True), torch.randn(3)).status


def test_a_result_that_is_kept_by_identity_fails():
    result = result_of(kept_by_identity)

    assert "failed" == result.status
    assert result.message.startswith("one tensor for 'x' and 'y': output 0[")


def test_one_gradient_for_both_fails():
    result = result_of(OneGradient, torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True))

    assert "failed" == result.status
    assert result.message.startswith("one tensor for 'x' and 'y': gradient of 'x'[")


def test_an_error_for_one_tensor_fails():
    expected = "one tensor for 'x' and 'y': the op raises ValueError: two tensors are needed"

    assert expected == result_of(refusing).message


@each(
    "tensors",
    [
        (torch.randn(3),),
        (torch.randn(3), torch.randn(4)),
        (torch.ones(3), torch.ones(3).int()),
        (torch.arange(3), torch.arange(3)),
    ],
)
def test_tensors_that_differ_in_shape_or_dtype_are_skipped(tensors):
    result = result_of(lambda *given: given[0] * 2, *tensors)

    assert "skipped" == result.status
    assert "no two floating tensors of the sample have one shape and dtype" == result.message


def test_what_is_written_to_is_left_out():
    assert "skipped" == result_of(add_).status
