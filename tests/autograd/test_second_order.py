"""Nothing saved is treated as a constant: second order through hidden outputs, forward over reverse, references."""

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from custom_autograd import GradientError, custom_op


def numpy_of(x):
    return x.detach().numpy()


def rand(*shape, requires_grad=True):
    return (torch.rand(*(shape or (3,)), dtype=torch.float64) + 0.5).requires_grad_(requires_grad)


def make(name, **options):
    """The cube, with the square as a hidden output that the backward needs."""

    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(numpy_of(x) ** 3), torch.from_numpy(numpy_of(x) ** 2)

    return custom_op(f"second_order::{name}", kernel, outputs=("out", "square"), hidden=("square",), **options)


named = make("named")


@named.register_backward
def _(grad_out, x, square, grad_square):
    return 3 * grad_out * square + 2 * grad_square * x


shared = make("shared")
shared.register_backward(lambda grad_out, square: 3 * grad_out * square)
shared.register_reference(lambda x: (x**3, x**2))

neither = make("neither")
neither.register_backward(lambda grad_out, square: 3 * grad_out * square)


def test_without_a_name_and_without_a_reference_the_functional_second_derivative_raises():
    with pytest.raises(GradientError, match="'square'"):
        torch.func.grad(lambda t: torch.func.grad(lambda u: neither(u).sum())(t).sum())(torch.ones(3))


# ------------------------------------------------------------------------------------------------ forward over reverse


def _hidden_tangent_omitted(name):
    op = make(name)
    op.register_jvp(lambda tangent_x, x: 3 * tangent_x * x**2)
    return op


omitting_named = _hidden_tangent_omitted("omitting_named")
omitting_named.register_backward(lambda grad_out, x, square, grad_square: 3 * grad_out * square + 2 * grad_square * x)

omitting_shared = _hidden_tangent_omitted("omitting_shared")
omitting_shared.register_backward(lambda grad_out, square: 3 * grad_out * square)
omitting_shared.register_reference(lambda x: (x**3, x**2))

omitting_neither = _hidden_tangent_omitted("omitting_neither")
omitting_neither.register_backward(lambda grad_out, square: 3 * grad_out * square)

giving = make("giving")
giving.register_jvp(lambda tangent_x, x: {"out": 3 * tangent_x * x**2, "square": 2 * tangent_x * x})
giving.register_backward(lambda grad_out, square: 3 * grad_out * square)


def forward_over_reverse(op, x):
    gradient = torch.func.grad(lambda t: op(t).sum())
    return torch.func.jvp(gradient, (x,), (torch.ones_like(x),))[1]


def reverse_over_forward(op, x):
    def tangent(t):
        return torch.func.jvp(op, (t,), (torch.ones_like(t),))[1].sum()

    return torch.func.grad(tangent)(x)


def dual_over_reverse(op, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.clone().requires_grad_(), torch.ones_like(x))
        (gradient,) = torch.autograd.grad(op(dual).sum(), dual, create_graph=True)
        return torch.autograd.forward_ad.unpack_dual(gradient).tangent


MIXED = each("mixed", [forward_over_reverse, dual_over_reverse, reverse_over_forward])


@MIXED
@each("op", [named, shared, omitting_named, omitting_shared])
def test_mixed_derivatives_are_right(mixed, op):
    x = rand(requires_grad=False)

    assert torch.allclose(6 * x, mixed(op, x))


@pytest.mark.parametrize("mixed", [forward_over_reverse, dual_over_reverse])
def test_a_hidden_tangent_that_the_jvp_gives_is_used(mixed):
    x = rand(requires_grad=False)

    assert torch.allclose(6 * x, mixed(giving, x))


@MIXED
@each("op", [neither, omitting_neither], ids=["no jvp", "jvp omits the hidden tangent"])
def test_mixed_derivatives_are_never_silently_wrong(mixed, op):
    x = rand(requires_grad=False)
    try:
        found = mixed(op, x)
    except GradientError as error:
        assert "square" in str(error)  # noqa: PT017 - right or refused, both are fine
    else:
        assert found is not None
        assert torch.allclose(6 * x, found)


# ----------------------------------------------------------------------------------------- the reference as backward


@custom_op("second_order::blend")
def blend(x: Tensor, y: Tensor, ws: list[Tensor], n: int = 2, *, k: float = 1.0) -> tuple[Tensor, Tensor]:
    total = sum(map(numpy_of, ws))
    return torch.from_numpy(numpy_of(x) ** n * numpy_of(y) * total * k), torch.from_numpy(numpy_of(x).astype(np.int64))


def blend_reference(x, y, ws, n=2, *, k=1.0):
    return x**n * y * sum(ws) * k, x.detach().to(torch.int64)


blend.register_reference(blend_reference)


def loss(f, *args, **kwargs):
    return (f(*args, **kwargs)[0] ** 2).sum()


@pytest.mark.parametrize("needed", [(0, 1, 2, 3), (0,), (1,), (3,), (0, 2)])
def test_the_reference_serves_as_backward(needed):
    inputs = [rand(requires_grad=index in needed) for index in range(4)]
    wanted = [inputs[index] for index in needed]
    x, y, v, w = inputs
    found = torch.autograd.grad(loss(blend, x, y, [v, w], 3, k=0.5), wanted)
    expected = torch.autograd.grad(loss(blend_reference, x, y, [v, w], 3, k=0.5), wanted)

    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(other, one)


def test_the_same_tensor_given_several_times_gets_all_its_shares():
    x = rand()
    (found,) = torch.autograd.grad(loss(blend, x, x, [x, x]), x)
    (expected,) = torch.autograd.grad(loss(blend_reference, x, x, [x, x]), x)

    assert torch.allclose(expected, found)


def test_the_reference_is_differentiated_twice():
    inputs = (rand(), rand(), rand(), rand())

    assert gradgradcheck(lambda x, y, v, w: blend(x, y, [v, w])[0], inputs)


def test_an_integer_output_carries_no_gradient():
    assert not blend(rand(), rand(), [rand()])[1].requires_grad


def test_the_reference_serves_inputs_without_a_rule():
    @custom_op("second_order::half_covered")
    def half(x: Tensor, w: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x) * numpy_of(w) ** 2)

    half.register_reference(lambda x, w: x * w**2)
    half.register_grad("x")(lambda grad, w: grad * w**2)
    x, w = rand(), rand()

    assert gradcheck(half, (x, w))
    assert gradgradcheck(half, (x, w))


def test_an_input_that_the_reference_does_not_use_has_no_gradient():
    @custom_op("second_order::ignores")
    def ignores(x: Tensor, w: Tensor) -> Tensor:
        return x * 2

    ignores.register_reference(lambda x, w: x * 2)
    x, w = rand(), rand()
    ignores(x, w).sum().backward()

    assert w.grad is None or not w.grad.any()
    assert torch.equal(torch.full((3,), 2.0, dtype=x.dtype), x.grad)


@custom_op("second_order::largest", outputs=("value", "index", "spare"), hidden=("index", "spare"))
def largest(x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return *x.max(-1), None


largest.register_fake(lambda x: (x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1], dtype=torch.long), None))


@largest.register_backward
def _(grad_value, index, spare, meta):
    assert spare is None
    return grad_value.new_zeros(meta.x.shape).scatter(-1, index.unsqueeze(-1), grad_value.unsqueeze(-1))


def test_hidden_indices_and_absent_hidden_outputs_need_no_tangent():
    def cubed(maximum):
        return lambda x: (maximum(x) ** 3).sum()

    x = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]])
    expected = torch.func.hessian(cubed(lambda x: x.max(-1)[0]))(x)

    assert torch.equal(expected, torch.func.hessian(cubed(largest))(x))
