"""Defaults that are floats are constants of compiled code, as in ops of torch.library, also with dynamic shapes."""

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("float_defaults::number", reference=True)
def number(x: Tensor, k: float = 2.0, *, shift: float | None = 0.5) -> Tensor:
    return torch.sin(x) * k + shift


@custom_op("float_defaults::numbers", reference=True)
def numbers(x: Tensor, ks: tuple[float, float] = (2.0, 0.5)) -> Tensor:
    return torch.sin(x) * ks[0] + ks[1]


@custom_op("float_defaults::in_a_container", reference=True)
def in_a_container(tensors: dict[str, Tensor], k: float = 2.0, shift: float = 0.5) -> Tensor:
    return torch.sin(tensors["x"]) * k + shift


CALLS = {
    "a number": number,
    "a tuple": numbers,
    "beside a container": lambda x: in_a_container({"x": x}),
    "out=": lambda x: number.out(x, out=torch.empty_like(x)),
}


def right(x):
    return torch.sin(x) * 2 + 0.5


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_default_is_an_input_of_a_graph(call, fresh_compiler):
    x = torch.randn(3, 4)
    shapes = []

    def backend(graph, examples):
        shapes.extend(tuple(map(int, one.shape)) for one in examples if isinstance(one, Tensor))
        return graph

    for _ in range(2):  # before the first eager call, and after it
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(call, backend=backend, dynamic=True)(x), right(x))
        torch.testing.assert_close(call(x), right(x))
    assert [(3, 4)] * 2 == shapes


def test_given_numbers_are_used_in_eager_and_in_graphs(fresh_compiler):
    x = torch.randn(3, 4)
    for call in (number, torch.compile(number, backend="eager", dynamic=True)):
        torch.testing.assert_close(call(x, 3.0), torch.sin(x) * 3 + 0.5)
        torch.testing.assert_close(call(x, shift=1.5, k=2), torch.sin(x) * 2 + 1.5)


def test_gradient_of_a_branch_with_dynamic_shapes(fresh_compiler):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: number(x) + x, lambda x: number(x) * x, (x,))

    for x in (torch.full((3, 4), 0.5), torch.full((3, 4), -0.5)):
        got, expected = (x.clone().requires_grad_() for _ in range(2))
        torch.compile(branch, backend="aot_eager", fullgraph=True, dynamic=True)(got).sum().backward()
        (right(expected) + expected if x[0, 0] > 0 else right(expected) * expected).sum().backward()
        torch.testing.assert_close(got.grad, expected.grad)
