"""SwiGLU and GEGLU by value, against PyTorch's activations in float64: every dtype, layout and size."""

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
)

units = load("gated_units")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": partial(F.gelu, approximate="tanh")}
SHAPES = [(4, 8), (2, 3, 19), (5,), (3, 1), (), (0, 8), (4, 0), (3, 40000)]
every_unit = each("name", ACTIVATIONS)


def exact(name: str, gate: Tensor, up: Tensor) -> Tensor:
    return ACTIVATIONS[name](gate) * up


def exact_gradients(name: str, gate: Tensor, up: Tensor, out_grad: Tensor) -> tuple[Tensor, ...]:
    inputs = [tensor.detach().double().requires_grad_() for tensor in (gate, up)]
    return torch.autograd.grad(exact(name, *inputs), inputs, out_grad.double())


def inputs_of(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    gate, up, out_grad = (random(*shape, dtype=dtype, seed=seed) for seed in range(3))
    return 3 * gate, up, out_grad


@needs_compiler
@every_unit
@dtypes_in_layouts
def test_value(name: str, layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    for shape in SHAPES:
        gate, up, _ = inputs_of(shape, dtype)
        gate = layout(gate) if shape else gate
        with getattr(units, name).use_kernel("cpp"):
            out = getattr(units, name)(gate, up)

        assert out.is_contiguous()
        assert_near(out, exact(name, gate.double(), up.double()), dtype)


@needs_compiler
@every_unit
@dtypes_in_layouts
def test_gradients_in_one_pass(name: str, layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    for shape in SHAPES:
        gate, up, out_grad = inputs_of(shape, dtype)
        gate, out_grad = (layout(tensor) if shape else tensor for tensor in (gate, out_grad))
        with units.gated_unit_grad.use_kernel("cpp"):
            found = units.gated_unit_grad(gate, up, out_grad, name == "swiglu")

        for gradient, expected in zip(found, exact_gradients(name, gate, up, out_grad), strict=True):
            assert_near(gradient, expected, dtype, budget=2 * BUDGETS[dtype])


@needs_compiler
@every_unit
def test_halves_of_a_projection_are_not_copied(name: str) -> None:
    """Rows with gaps between them are read where they lie: no memory beyond the output is asked for."""
    gate, up = random(64, 2048, dtype=torch.float32).chunk(2, -1)
    op = getattr(units, name)
    op(gate, up)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        op(gate, up)

    assert 64 * 1024 * 4 == sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())


@every_unit
def test_far_out_the_derivative_is_that_of_the_asymptote(name: str) -> None:
    """The cube of a large gate is infinite in float32; the derivative is 1 or 0 there."""
    gate = torch.tensor([1e30, -1e30, 100.0, -100.0], requires_grad=True)
    up = torch.full((4,), 2.0)
    (found,) = torch.autograd.grad(getattr(units, name)(gate, up).sum(), gate)

    assert torch.equal(torch.tensor([2.0, 0.0, 2.0, 0.0]), found.round(decimals=6) + 0.0)


@every_unit
def test_derivatives(name: str) -> None:
    assert_derivatives(getattr(units, name), partial(exact, name), *inputs_of((2, 3), torch.float64)[:2])


@every_unit
@each("up", [torch.ones(8), torch.ones(2, 7), torch.ones(2, 8, dtype=torch.float64)])
def test_other_shapes_and_dtypes_are_refused(name: str, up: Tensor) -> None:
    expected = r"be \(\*b\) with b = \(2, 8\)|have the dtype of 'gate', torch\.float32, not torch\.float64"
    with pytest.raises(ValueError, match=rf"'up' must ({expected})"):
        getattr(units, name)(torch.ones(2, 8), up)


def test_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'out_grad' must be \(\*b\) with b = \(2, 8\)"):
        units.gated_unit_grad(torch.ones(2, 8), torch.ones(2, 8), torch.ones(2, 7), True)


@interpreted
@every_unit
@dtypes
def test_triton_interpreted(name: str, dtype: torch.dtype) -> None:
    """The CUDA kernel on CPU tensors; the interpreter truncates bfloat16, hence two roundings."""
    near = partial(assert_near, dtype=dtype, budget=max(4 * BUDGETS[dtype], 1e-9))
    for shape in SHAPES[:-1]:
        gate, up, out_grad = inputs_of(shape, dtype)
        near(units.launch(gate, up, None, name == "swiglu")[0], exact(name, gate.double(), up.double()))
        found = units.launch(gate, up, out_grad, name == "swiglu")
        for gradient, expected in zip(found, exact_gradients(name, gate, up, out_grad), strict=True):
            near(gradient, expected)


@interpreted
def test_triton_reads_rows_with_gaps() -> None:
    gate, up = random(3, 2600, dtype=torch.float32).chunk(2, -1)

    (found,) = units.launch(gate, up, None, True)

    assert_near(found, exact("swiglu", gate.double(), up.double()), torch.float32)
