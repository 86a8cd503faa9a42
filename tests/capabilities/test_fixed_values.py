"""A reference that runs in place of its op gives no gradient to values that the op declares constant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@custom_op("fixed_values::argument", reference=True, non_differentiable=("y",))
def argument(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@custom_op("fixed_values::elements", reference=True, non_differentiable=("values",))
def elements(x: Tensor, values: list[Tensor]) -> Tensor:
    return x * values[0]


@custom_op("fixed_values::container", reference=True, non_differentiable=("values",))
def container(x: Tensor, values: dict[str, Tensor]) -> Tensor:
    return x * values["y"]


@custom_op("fixed_values::output", reference=True, outputs=("product", "double"), non_differentiable=("double",))
def output(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x * 2


@custom_op("fixed_values::marked", reference=True, outputs=("product", "double"))
def marked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x * 2


def save(ctx, inputs, outputs):
    ctx.save_for_backward(*inputs)
    ctx.mark_non_differentiable(outputs[1])


def backward(ctx, grad, _):
    x, y = ctx.saved_tensors
    return grad * y, grad * x


marked.register_autograd(backward, setup_context=save)

CALLS = {
    "argument": (argument, lambda x, y: x * y.detach()),
    "list": (lambda x, y: elements(x, [y]), lambda x, y: x * y.detach()),
    "container": (lambda x, y: container(x, {"y": y}), lambda x, y: x * y.detach()),
    "output": (lambda x, y: sum(output(x, y)), lambda x, y: x * y + 2 * x.detach()),
    "marked output": (lambda x, y: sum(marked(x, y)), lambda x, y: x * y + 2 * x.detach()),
    "written": (lambda x, y: argument.inplace(x + 0 * y, y), lambda x, y: x * y.detach()),
}
WAYS = {
    "call": lambda f: lambda x, y: f(x, y).sum(),
    "vmap": lambda f: lambda x, y: torch.vmap(f)(x, y).sum(),
    "vmap of one": lambda f: lambda x, y: torch.vmap(f, in_dims=(None, 0))(x[0], y).sum(),
    "vmap of the other": lambda f: lambda x, y: torch.vmap(f, in_dims=(0, None))(x, y[0]).sum(),
    "compiled vmap": lambda f: torch.compile(lambda x, y: torch.vmap(f)(x, y).sum(), backend="aot_eager"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_held_back(call, way):
    found, expected = (torch.func.grad(WAYS[way](f), argnums=(0, 1))(*numbers()) for f in CALLS[call])

    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("call", CALLS)
def test_tangents_are_held_back(call):
    x, y = numbers()
    found, expected = (torch.func.jvp(torch.vmap(f), (x, y), (y, x))[1] for f in CALLS[call])

    torch.testing.assert_close(found, expected)


def test_a_view_is_held_back():
    view = custom_op(
        "fixed_values::view",
        lambda x: x[..., :1],
        schema="(Tensor(a) x) -> Tensor(a)",
        reference=True,
        non_differentiable=("x",),
    )
    x = torch.ones(3, 2, requires_grad=True)

    assert not view(x).requires_grad
    assert not torch.vmap(view)(x).requires_grad
    assert torch.func.grad(lambda x: (view(x) + x).sum())(x.detach()).tolist() == [[1.0, 1.0]] * 3


def numbers() -> tuple[Tensor, Tensor]:
    return torch.arange(1.0, 7.0).view(3, 2), torch.arange(2.0, 8.0).view(3, 2)
