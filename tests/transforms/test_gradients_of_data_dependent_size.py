"""A gradient whose size follows from data in the backward is compared with its input when the graph runs."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op


def summed(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([part.sum() for part in x.split(lengths.tolist())])


def spread(grad: Tensor, lengths: Tensor, factor: int = 1) -> Tensor:
    return torch.cat([one.expand(factor * n) for one, n in zip(grad, lengths.tolist(), strict=True)])


@custom_op("data_sizes::segment_sums")
def segment_sums(x: Tensor, lengths: Tensor) -> Tensor:
    return summed(x, lengths)


@custom_op("data_sizes::both_sums")
def both_sums(xs: list[Tensor], y: Tensor, lengths: Tensor) -> Tensor:
    return summed(xs[0] * xs[1] + y, lengths)


@custom_op("data_sizes::too_large")
def too_large(x: Tensor, lengths: Tensor) -> Tensor:
    return summed(x, lengths)


segment_sums.register_fake(lambda x, lengths: x.new_empty(lengths.shape))
both_sums.register_fake(lambda xs, y, lengths: y.new_empty(lengths.shape))
too_large.register_fake(lambda x, lengths: x.new_empty(lengths.shape))


@segment_sums.register_backward
def _(grad, lengths):
    return {"x": spread(grad, lengths)}


@both_sums.register_backward
def _(grad, xs, lengths):
    return {"xs": [spread(grad, lengths) * xs[1], spread(grad, lengths) * xs[0]], "y": lambda: spread(grad, lengths)}


@too_large.register_backward
def _(grad, lengths):
    return {"x": spread(grad, lengths, factor=2)}


@custom_op("data_sizes::without_a_dimension")
def without_a_dimension(x: Tensor, lengths: Tensor) -> Tensor:
    return summed(x, lengths)


without_a_dimension.register_fake(lambda x, lengths: x.new_empty(lengths.shape))


@without_a_dimension.register_backward
def _(grad, lengths):
    return {"x": spread(grad, lengths).unsqueeze(0)}


LENGTHS = torch.tensor([3, 0, 2])


@each("dynamic", [False, True], ids=["static", "dynamic"])
@each(
    "op, count",
    [
        (lambda x: segment_sums(x, LENGTHS), 1),
        (lambda x, y, z: both_sums([x, y], z, LENGTHS), 3),
    ],
    ids=["a tensor", "a list and a tensor"],
)
def test_compiled_gradients_equal_those_of_eager(op, count, dynamic):
    torch._dynamo.reset()
    inputs = [torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    expected = torch.autograd.grad((op(*inputs) * weights).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad((compiled(*inputs) * weights).sum(), inputs), expected)


@each("op", [too_large, without_a_dimension], ids=["too large", "without a dimension"])
def test_a_compiled_gradient_of_a_wrong_size_raises(op):
    torch._dynamo.reset()
    x = torch.randn(5, requires_grad=True)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")

    with pytest.raises(RuntimeError, match="the gradient of 'x' has the wrong shape"):
        compiled(x, LENGTHS).sum().backward()
