"""vmap that follows from a line equals a loop, in one call of the kernel."""

import itertools

import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op

CALLS = []


@custom_op("shapes_batching::scaled", shapes="x: *b [d], weight: [d], bias: #*b 1 -> output: *b [d]")
def scaled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    CALLS.append(x.shape)
    return x * weight + bias


@custom_op(
    "shapes_batching::pairs",
    outputs=("total", "difference"),
    shapes="x: *b d, y: *b d -> total: *b d, difference: *b d",
)
def pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    CALLS.append(x.shape)
    return x + y, x - y


def batched(tensor, dim):
    return tensor if dim is None else torch.stack([tensor, 2 * tensor, 3 * tensor], dim)


def looped(op, tensors, dims):
    calls = [op(*(x if d is None else x.select(d, i) for x, d in zip(tensors, dims, strict=True))) for i in range(3)]
    return [torch.stack(one) for one in zip(*calls, strict=True)] if isinstance(calls[0], tuple) else torch.stack(calls)


DIMS = [dims for dims in itertools.product((None, 0, -1), repeat=2) if dims != (None, None)]


@each("dims", DIMS)
@each("leading", [(), (2,), (4, 2)])
def test_pairs_equal_a_loop_in_one_call(dims, leading):
    torch.manual_seed(0)
    tensors = [batched(torch.randn(*leading, 5), dim) for dim in dims]
    positive = [None if dim is None else dim % tensor.dim() for dim, tensor in zip(dims, tensors, strict=True)]
    expected = looped(pairs, tensors, positive)
    CALLS.clear()

    found = torch.vmap(pairs, in_dims=dims)(*tensors)

    torch.testing.assert_close(list(found), expected)
    assert 1 == len(CALLS)


@each("bias", [(1,), (2, 1), (1, 1)])
@each("dims", [(0, None, None), (0, None, 0), (None, None, 0)])
def test_broadcast_group_equals_a_loop(dims, bias):
    torch.manual_seed(0)
    tensors = [batched(torch.randn(shape), dim) for shape, dim in zip(((2, 5), (5,), bias), dims, strict=True)]

    found = torch.vmap(scaled, in_dims=dims)(*tensors)

    torch.testing.assert_close(found, looped(scaled, tensors, dims))


def test_batch_of_what_has_no_group_is_a_loop():
    torch.manual_seed(0)
    tensors = torch.randn(3, 2, 5), torch.randn(3, 5), torch.randn(1)
    CALLS.clear()

    found = torch.vmap(scaled, in_dims=(0, 0, None))(*tensors)

    torch.testing.assert_close(found, looped(scaled, tensors, (0, 0, None)))


def test_nested_batches_equal_nested_loops():
    x, y = torch.randn(2, 3, 5), torch.randn(3, 2, 5)

    total, _ = torch.vmap(torch.vmap(pairs), in_dims=(0, 1))(x, y)

    torch.testing.assert_close(total, x + y.transpose(0, 1))


@custom_op("shapes_batching::bracketed", shapes="x: [*b] -> output: [*b]")
def normalised(x: Tensor) -> Tensor:
    return x / x.norm()


def test_group_in_brackets_is_not_batched_in_front():
    x = torch.randn(3, 4)

    torch.testing.assert_close(torch.vmap(normalised)(x), torch.stack([one / one.norm() for one in x]))


@custom_op("shapes_batching::inside", shapes="x: *b [d], y: [d] *b -> output: *b [d]", reference=True)
def inside(x: Tensor, y: Tensor) -> Tensor:
    return x * y.movedim(0, -1)


def test_tensor_with_the_group_behind_another_dimension_is_batched_as_without_a_line():
    x, y = torch.randn(3, 2, 4), torch.randn(4, 2)

    torch.testing.assert_close(torch.vmap(inside, in_dims=(0, None))(x, y), x * y.movedim(0, -1))
