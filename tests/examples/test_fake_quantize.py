"""Fake quantization by value against PyTorch's own, and its straight-through gradients against LSQ's equations."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import (
    assert_derivatives,
    assert_near,
    dtypes,
    dtypes_in_layouts,
    load,
    needs_compiler,
    random,
    statistic,
)

gallery = load("fake_quantize")
fake_quantize = gallery.fake_quantize
# Shape and axis: one scale, a channel of neighbours, channels that alternate, none at all, and more than one stretch.
CASES = [((4, 5), None), ((2, 3, 50), 1), ((40, 3), -1), ((0, 3), None), ((3, 0), 1), ((2, 17000), 0), ((), None)]
cases = each(("shape", "axis"), CASES)


def parameters(shape: tuple[int, ...], axis: int | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A positive scale and an integer zero point for each channel."""
    count = 1 if axis is None else shape[axis]
    return (random(count, dtype=torch.float64, seed=1).abs() / 10 + 0.1).to(dtype), torch.arange(count) % 5


def by_equations(
    out_grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Equations 2 and 3 of LSQ, element by element, with their three cases."""
    per_element = [t.expand(1) if axis is None else t for t in (scale, zero_point)]
    shape = [1] * x.dim()
    if axis is not None:
        shape[axis] = -1
    s, zero = (t.reshape(shape).expand(x.shape) for t in per_element)
    steps, least, greatest = x / s, low - zero, high - zero
    inside = (steps >= least) & (steps <= greatest)
    share = torch.where(inside, steps.round() - steps, torch.where(steps < least, least, greatest)) * out_grad
    dims = [d for d in range(x.dim()) if axis is None or d != axis % x.dim()]
    return out_grad * inside, share.sum(dims).reshape(scale.shape) if dims else share.reshape(scale.shape)


@needs_compiler
@dtypes_in_layouts
@cases
def test_cpp_equals_reference(
    shape: tuple[int, ...], axis: int | None, layout: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """Bit for bit: division, clamp, rounding and product are each rounded once, in both."""
    x = random(*shape, dtype=dtype)
    x = layout(x) if shape else x
    scale, zero_point = parameters(shape, axis, dtype)
    found = fake_quantize(x, scale, zero_point, -8, 7, axis)

    assert found.is_contiguous()
    assert torch.equal(fake_quantize.__wrapped__(x, scale, zero_point, -8, 7, axis), found)


@needs_compiler
@dtypes
@cases
def test_gradients_are_those_of_the_paper(shape: tuple[int, ...], axis: int | None, dtype: torch.dtype) -> None:
    out_grad, x = random(*shape, dtype=dtype, seed=2), random(*shape, dtype=dtype)
    scale, zero_point = parameters(shape, axis, dtype)
    inputs = (out_grad.double(), x.double(), scale.double(), zero_point)
    x_grad, scale_grad = gallery.fake_quantize_grad(out_grad, x, scale, zero_point, -2, 1, axis)
    exact_x, exact_scale = by_equations(*inputs, axis, -2, 1)
    size = max(1.0, float(exact_scale.abs().max()) if exact_scale.numel() else 1.0)

    assert (dtype, dtype) == (x_grad.dtype, scale_grad.dtype)
    assert torch.equal(exact_x.to(dtype), x_grad)
    assert_near(scale_grad, exact_scale, dtype, {torch.float64: 1e-11, torch.float32: 1e-4}.get(dtype, 2**-7) * size)


@each("axis", [None, 1])
def test_values_are_those_of_pytorch(axis: int | None) -> None:
    """With steps that are powers of two, which PyTorch's multiplication by 1 / scale keeps exact, ties included."""
    x = torch.arange(-40, 40).view(4, 20)[:, :4].float() / 8
    scale, zero_point = torch.tensor([0.25, 0.5, 0.125, 1.0]), torch.tensor([0, 2, -1, 1])
    if axis is None:
        expected = torch.fake_quantize_per_tensor_affine(x, 0.25, 2, -8, 7)
        found = fake_quantize(x, scale[0], zero_point[1], -8, 7)
    else:
        expected = torch.fake_quantize_per_channel_affine(x, scale, zero_point.int(), axis, -8, 7)
        found = fake_quantize(x, scale, zero_point, -8, 7, axis)

    assert torch.equal(expected, found)


def test_gradients_are_those_of_pytorch_away_from_the_last_half_step() -> None:
    """PyTorch rounds before it clamps: between the bounds and half a step beyond them it differs from the paper."""
    x, scale = random(200, dtype=torch.float32), torch.tensor([0.25])
    steps = x / scale
    x = x[((steps > 7) & (steps < 7.5) | (steps < -8) & (steps > -8.5)).logical_not()].requires_grad_()
    scale.requires_grad_()
    builtin = torch._fake_quantize_learnable_per_tensor_affine(x, scale, torch.zeros(1), -8, 7, 1.0)
    found = torch.autograd.grad(fake_quantize(x, scale, None, -8, 7).square().sum(), (x, scale))

    torch.testing.assert_close(found, torch.autograd.grad(builtin.square().sum(), (x, scale)))


def inputs() -> tuple[Tensor, Tensor]:
    return random(4, 3, dtype=torch.float64), parameters((4, 3), 1, torch.float64)[0]


def test_derivatives_are_straight_through() -> None:
    options = {"zero_point": torch.tensor([1, 0, 2]), "quant_min": -3, "quant_max": 4, "axis": 1}

    assert_derivatives(partial(fake_quantize, **options), partial(fake_quantize.__wrapped__, **options), *inputs())


@needs_compiler
@dtypes
def test_values_that_are_not_finite(dtype: torch.dtype) -> None:
    """Infinities go to the ends of the range with no gradient, as large numbers do; NaN stays NaN."""
    x = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=dtype).requires_grad_()
    out = fake_quantize(x, torch.ones(1, dtype=dtype), None, -8, 7)
    (grad,) = torch.autograd.grad(out.nan_to_num().sum(), x)

    assert torch.equal(torch.tensor([7.0, -8.0], dtype=dtype), out[:2])
    assert out[2].isnan()
    assert torch.equal(torch.zeros(3, dtype=dtype), grad)


def test_scale_gets_its_own_dtype() -> None:
    """Activations in bfloat16 with a scale in float32, as in training."""
    x, scale = random(8, dtype=torch.bfloat16), torch.tensor(0.5, requires_grad=True)
    (grad,) = torch.autograd.grad(fake_quantize(x, scale).float().sum(), scale)

    assert (torch.float32, torch.Size([])) == (grad.dtype, grad.shape)
    assert statistic(x.dtype) == grad.dtype


@each(
    ("change", "message"),
    [
        ({"quant_min": 3, "quant_max": 3}, "'quant_min' must be less than 'quant_max'; found 3, 3"),
        ({"axis": 2}, r"'x' must be \(a0 a1 c \*b\)\n  expected   at least 3 dimensions"),
        ({"axis": -3}, r"'x' must be \(\*b c a0 a1\)\n  expected   at least 3 dimensions"),
        ({"scale": torch.ones(2)}, r"'scale' must be \(1\)"),
        ({"axis": 1}, r"'scale' must be \(c\) with c = 3"),
        ({"zero_point": torch.tensor([0, 1])}, r"'zero_point' must be \(1\)"),
        ({"zero_point": torch.tensor([0.5])}, "'zero_point' must have an integer dtype, not torch.float32"),
        ({"scale": torch.ones(1) + 1j}, "'scale' must have a floating-point dtype, not torch.complex64"),
        ({"scale": torch.tensor([1])}, "'scale' must have a floating-point dtype, not torch.int64"),
    ],
)
def test_bad_arguments_are_said(change: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fake_quantize(**({"x": torch.ones(2, 3), "scale": torch.ones(1)} | change))


@each("scale", [torch.ones(1).expand(3), torch.arange(1.0, 7)[::2]])
def test_scale_of_any_strides(scale: Tensor) -> None:
    """Values and gradients are those of the scale in one piece."""
    x = 5 * random(4, 3, dtype=torch.float32)
    expected, expected_grads = with_gradients(x, scale.contiguous())

    found, grads = with_gradients(x, scale)

    assert torch.equal(expected, found)
    assert all(map(torch.equal, expected_grads, grads))


def with_gradients(x: Tensor, scale: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    inputs = (x.detach().requires_grad_(), scale.detach().requires_grad_())
    out = fake_quantize(*inputs, axis=1)
    return out.detach(), torch.autograd.grad(out.square().sum(), inputs)
