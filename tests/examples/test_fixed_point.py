"""fixed_point and linear_fixed_point: that they solve, derivatives against ones through the iterations, refusals."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from gallery_values import BUDGETS, assert_derivatives, assert_near, dtypes, load, random, saved_shapes, transposed

module = load("fixed_point")
fixed_point, linear_fixed_point = module.fixed_point, module.linear_fixed_point


def made(*leading: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A weight of norm below 0.7, and what drives it."""
    weight = random(*leading, 5, 5, dtype=torch.float64)
    weight = 0.7 * weight / torch.linalg.matrix_norm(weight, 2, keepdim=True)
    return weight.to(dtype), random(*leading, 3, 5, dtype=dtype, seed=1)


def unrolled(weight: Tensor, drive: Tensor) -> Tensor:
    """A hundred iterations, through which automatic differentiation goes."""
    z = torch.zeros_like(drive)
    for _ in range(100):
        z = torch.tanh(z @ weight.mT + drive)
    return z


def solved(weight: Tensor, slope: Tensor, source: Tensor) -> Tensor:
    """The linear one as a dense system per row."""
    system = torch.eye(weight.shape[-1], dtype=weight.dtype) - slope.unsqueeze(-1) * weight.unsqueeze(-3)
    return torch.linalg.solve(system, (slope * source).unsqueeze(-1)).squeeze(-1)


@dtypes
@each("layout", [Tensor.contiguous, transposed])
@each("leading", [(), (2,)])
def test_values(leading: tuple[int, ...], layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """16 units in the last place of change are up to 1 / (1 - 0.7) as many of error."""
    weight, drive = (layout(x) for x in made(*leading, dtype=dtype))

    found = fixed_point(weight, drive)

    assert found.is_contiguous()
    assert_near(found, unrolled(weight.double(), drive.double()), dtype, budget=10 * BUDGETS[dtype])


@dtypes
def test_linear_values(dtype: torch.dtype) -> None:
    weight, source = made(dtype=dtype)
    slope = random(3, 5, dtype=dtype, seed=2).sigmoid()

    found = linear_fixed_point(weight, slope, source)

    assert_near(found, solved(weight.double(), slope.double(), source.double()), dtype, budget=10 * BUDGETS[dtype])


SLOPE = random(3, 5, dtype=torch.float64, seed=2).sigmoid()
OPS = {
    "fixed_point": (fixed_point, unrolled, made()),
    "linear_fixed_point": (linear_fixed_point, solved, (made()[0], SLOPE, made()[1])),
}


@each(("op", "reference", "inputs"), OPS.values())
def test_derivatives(op, reference, inputs) -> None:
    """Implicit derivatives are those through the iterations."""
    assert_derivatives(op, reference, *inputs)


def test_layer_of_the_paper() -> None:
    """tanh(W z + U x + b), with gradients of U, x and b as well."""
    weight, _ = made()
    x, projection, bias = (random(*s, dtype=torch.float64, seed=4).requires_grad_() for s in ((3, 4), (5, 4), (5,)))
    z = fixed_point(weight, F.linear(x, projection, bias))
    found = torch.autograd.grad(z.sum(), (x, projection, bias))
    expected = torch.autograd.grad(unrolled(weight, F.linear(x, projection, bias)).sum(), (x, projection, bias))

    torch.testing.assert_close(z, torch.tanh(z @ weight.T + x @ projection.T + bias))
    torch.testing.assert_close(found, expected)


def test_only_inputs_and_the_fixed_point_are_saved() -> None:
    """However many iterations there are."""
    weight, drive = (x.requires_grad_() for x in made())

    assert [(3, 5), (5, 5)] == sorted(saved_shapes(lambda: fixed_point(weight, drive)))


def test_tiny_gradients_converge_too() -> None:
    """The tolerance is relative to each row, so that a row of 1e-30 is solved as exactly as the others."""
    weight, drive = (x.float() for x in made())
    source = torch.tensor([[1.0], [1e-15], [1e-30]]) * drive
    found = linear_fixed_point(weight, SLOPE.float(), source)

    exact = solved(weight.double(), SLOPE, source.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=0)


@each(("batch", "features"), [(0, 5), (3, 0)])
def test_empty(batch: int, features: int) -> None:
    assert (batch, features) == fixed_point(torch.ones(features, features), torch.ones(batch, features)).shape


def test_no_convergence() -> None:
    """A weight that rotates by much has no stable fixed point."""
    weight = torch.tensor([[0.0, -4.0], [4.0, 0.0]])
    message = "expected at most 1.91e-06 within 50 iterations; make the norm of 'weight' less than 1"
    with pytest.raises(module.ConvergenceError, match=message):
        fixed_point(weight, torch.tensor([[0.1, 0.2]]), limit=50)


def test_values_that_are_not_finite_end_the_iteration() -> None:
    """At once, not after all iterations."""
    with pytest.raises(module.ConvergenceError, match="a relative change of nan"):
        fixed_point(torch.eye(2), torch.tensor([[0.1, torch.nan]]), limit=10**12)


REFUSED = {
    "features": (torch.ones(2, 2), torch.ones(1, 3)),
    "not square": (torch.ones(2, 3), torch.ones(1, 3)),
    "one row": (torch.ones(3, 3), torch.ones(3)),
    "leading": (torch.ones(3, 3), torch.ones(2, 1, 3)),
    "dtype": (torch.ones(3, 3), torch.ones(1, 3).double()),
    "integers": (torch.zeros(3, 3).long(), torch.ones(1, 3).long()),
}


@each("arguments", REFUSED.values())
def test_refused(arguments: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"gallery::fixed_point: ('\w+' must be \(|expected one real dtype; found)"):
        fixed_point(*arguments)
