"""Addition to the residual and normalisation in one pass: by value, against F.rms_norm in float64."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from gallery_values import (
    BUDGETS,
    assert_derivatives,
    assert_near,
    dtypes,
    dtypes_in_layouts,
    interpreted,
    load,
    needs_compiler,
    random,
    statistic,
)

norm = load("fused_add_rms_norm")

SHAPES = [(4, 8), (2, 3, 19), (5,), (3, 1), (0, 8), (4, 0), (300, 257)]
EPS = 1e-3


def exact(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the residual after the call, without a write."""
    total = residual + x
    return F.rms_norm(total, weight.shape, weight, EPS), total


def functional(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The op on a copy of the residual."""
    residual = residual.clone()
    return norm.fused_add_rms_norm(x, residual, weight, EPS), residual


def inputs_of(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1), random(shape[-1], dtype=dtype, seed=2)


def rounded(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """In float64, of the sum as it is kept in the dtype of x."""
    total = (residual.double() + x.double()).to(x.dtype).double()
    return exact(torch.zeros_like(total), total, weight.double())


@needs_compiler
@dtypes_in_layouts
def test_value_and_residual(layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """The residual is written where it lies, whatever its strides."""
    for shape in SHAPES:
        x, residual, weight = inputs_of(shape, dtype)
        expected, total = rounded(layout(x), residual, weight)
        x, residual = layout(x), residual if layout.__name__ == "expanded" else layout(residual)
        with norm.fused_add_rms_norm.use_kernel("cpp"):
            out = norm.fused_add_rms_norm(x, residual, weight, EPS)

        assert out.is_contiguous()
        assert_near(residual, total, dtype)
        assert_near(out, expected, dtype)


@needs_compiler
@dtypes_in_layouts
def test_gradients_in_one_pass(layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    for shape in SHAPES[:4] + SHAPES[-1:]:
        out_grad, residual_grad, residual = (layout(random(*shape, dtype=dtype, seed=seed)) for seed in range(3))
        weight = random(shape[-1], dtype=dtype, seed=3)
        rstd, rstd_grad = (random(*shape[:-1], 1, dtype=statistic(dtype), seed=seed).abs() for seed in (4, 5))
        arguments = (out_grad, residual_grad, residual, weight, rstd, rstd_grad)
        with norm.fused_add_rms_norm_grad.use_kernel("cpp"):
            found = norm.fused_add_rms_norm_grad(*arguments)
        expected = norm.fused_add_rms_norm_grad.__wrapped__(*(argument.double() for argument in arguments))

        # A sum over 300 rows cancels: what is left is as exact as its terms.
        for gradient, value, factor in zip(found, expected, (2, 2 + shape[0] / 4), strict=True):
            assert_near(gradient, value, dtype, budget=factor * BUDGETS[dtype])


def test_derivatives() -> None:
    """Of x, of the residual before the call, on which the hidden statistic depends, and of the weight."""
    assert_derivatives(functional, exact, *inputs_of((2, 3), torch.float64))


def test_residual_overwritten_before_the_backward_is_an_error() -> None:
    x, residual, weight = inputs_of((2, 5), torch.float64)
    x.requires_grad_()
    out = norm.fused_add_rms_norm(x, residual, weight)
    norm.fused_add_rms_norm(out, residual, weight)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@needs_compiler
def test_arguments_in_the_memory_that_is_written() -> None:
    """Each is read as it was before the call."""
    memory = random(3, 8, dtype=torch.float64)
    x, residual, weight = memory[:2], memory[1:], memory[2]
    expected, total = exact(x.clone(), residual.clone(), weight.clone())
    with norm.fused_add_rms_norm.use_kernel("cpp"):
        out = norm.fused_add_rms_norm(x, residual, weight, EPS)

    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(out, expected)


@needs_compiler
def test_gradient_of_the_weight_does_not_depend_on_the_number_of_threads() -> None:
    like_x = [random(999, 33, dtype=torch.float32, seed=seed) for seed in range(3)]
    arguments = (*like_x, torch.ones(33), torch.ones(999, 1), torch.zeros(999, 1))
    once = norm.fused_add_rms_norm_grad(*arguments)
    torch.set_num_threads(2)
    try:
        again = norm.fused_add_rms_norm_grad(*arguments)
    finally:
        torch.set_num_threads(1)

    assert all(map(torch.equal, once, again))


@each(
    ("x", "weight", "message"),
    [
        (torch.ones(8), torch.ones(8), r"'residual' must be \(\*b d\) with b = \(\)"),
        (torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8), r"found torch\.bfloat16 and torch\.float32"),
        (torch.ones(2, 8), torch.ones(7), r"'weight' must be \(d\) with d = 8"),
        (torch.ones(2, 8), torch.ones(8) + 1j, r"found torch\.complex64"),
        (torch.ones(2, 8), torch.ones(2, 8), r"'weight' must be \(d\)"),
    ],
)
def test_what_does_not_fit_is_refused(x: Tensor, weight: Tensor, message: str) -> None:
    """And the residual is left as it was."""
    residual = torch.zeros(2, 8)
    with pytest.raises(ValueError, match=message):
        norm.fused_add_rms_norm(x, residual, weight)

    assert not residual.any()


@needs_compiler
def test_expanded_residual_is_refused() -> None:
    """It has fewer places than elements."""
    with pytest.raises(RuntimeError, match=r"argument .residual. is written to, and is expanded"):
        norm.fused_add_rms_norm(torch.ones(2, 8), torch.zeros(1, 8).expand(2, 8), torch.ones(8))


@interpreted
@dtypes
def test_triton_interpreted(dtype: torch.dtype) -> None:
    """The CUDA kernel on CPU tensors; the interpreter truncates bfloat16, hence a kept sum of one unit less."""
    for shape in SHAPES[:-1]:
        x, residual, weight = inputs_of(shape, dtype)
        _, total = exact(x.double(), residual.double(), weight.double())
        out, rstd = norm.fused_add_rms_norm_triton(x, residual, weight, EPS)

        near = partial(assert_near, dtype=dtype, budget=max(2 * BUDGETS[dtype], 1e-9))
        near(residual, total)
        expected, _ = exact(torch.zeros_like(total), residual.double(), weight.double())
        near(out, expected)
        assert_near(rstd, (residual.double().square().mean(-1, keepdim=True) + EPS).rsqrt(), statistic(dtype), 1e-6)
