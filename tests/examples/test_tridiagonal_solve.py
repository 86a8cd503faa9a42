"""tridiagonal_solve against a dense solve in float64: values, gradients, tangents, and what it refuses."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import assert_derivatives, assert_near, dtypes_in_layouts, load, needs_compiler, random

tridiagonal_solve = load("tridiagonal_solve").tridiagonal_solve

# 32 systems are a block of lanes and 32 rows a tile; the leading dimensions are systems.
SHAPES = [(3, 5), (2, 3, 33), (35, 32), (1, 1), (7,), (0, 4), (3, 0)]
ZERO_FIRST = torch.tensor([[2.0, 2.0], [0.0, 2.0]])


def systems(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Diagonally dominant ones, with numbers in the two places that are not looked at."""
    lower, upper, rhs = (random(*shape, dtype=dtype, seed=seed) for seed in range(3))
    diagonal = 2.5 + lower.abs() + upper.abs()
    return lower, diagonal, upper, rhs


def dense(lower: Tensor, diagonal: Tensor, upper: Tensor, rhs: Tensor) -> Tensor:
    """The same by torch.linalg.solve."""
    matrix = torch.diag_embed(diagonal)
    if rhs.shape[-1] > 1:
        matrix = matrix + torch.diag_embed(lower[..., 1:], -1) + torch.diag_embed(upper[..., :-1], 1)
    return torch.linalg.solve(matrix, rhs.unsqueeze(-1)).squeeze(-1)


@needs_compiler
@dtypes_in_layouts
@each("shape", SHAPES)
def test_solutions(shape: tuple[int, ...], layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    arguments = [layout(x) for x in systems(*shape, dtype=dtype)]

    found = tridiagonal_solve(*arguments)

    assert found.is_contiguous()
    assert_near(found, dense(*(x.double() for x in arguments)), dtype)


def test_derivatives() -> None:
    """With respect to all four."""
    assert_derivatives(tridiagonal_solve, dense, *systems(2, 3, dtype=torch.float64))


def test_one_matrix_for_a_batch_of_right_hand_sides() -> None:
    """Batched over rhs alone, also inside a gradient of the matrix."""
    lower, diagonal, upper, rhs = systems(4, 5, dtype=torch.float64)

    def of_rows(function: Callable[..., Tensor], diagonal: Tensor) -> Tensor:
        return torch.vmap(partial(function, lower[0], diagonal, upper[0]))(rhs).square().sum()

    found = torch.func.grad(partial(of_rows, tridiagonal_solve))(diagonal[0])

    torch.testing.assert_close(found, torch.func.grad(partial(of_rows, dense))(diagonal[0]))


ONES = torch.ones(40, 3)
PIVOTS = [
    pytest.param(tridiagonal_solve, ZERO_FIRST, "the pivot of row 0 in system 1 is zero", marks=needs_compiler),
    pytest.param(tridiagonal_solve, ONES, "the pivot of row 1 in system 0 is zero", marks=needs_compiler),
    pytest.param(load("tridiagonal_solve").thomas_in_pytorch, ZERO_FIRST, "a pivot is zero"),
]


@pytest.mark.parametrize(("solve", "diagonal", "message"), PIVOTS, ids=["at first", "after elimination", "in PyTorch"])
def test_zero_pivot_is_raised_about_with_its_place(solve, diagonal: Tensor, message: str) -> None:
    """Without a singular matrix, as Thomas's algorithm divides by its first element, or with one without a zero."""
    ones = torch.ones_like(diagonal)
    with pytest.raises(RuntimeError, match=message):
        solve(ones, diagonal, ones, ones)


@each(
    ("lower", "message"),
    [
        (torch.ones(3), r"'diagonal' must be \(\*b n\) with b = \(\)"),
        (torch.ones(2, 2).double(), r"'lower' is torch.float64 \(2, 2\), 'rhs' torch.float32"),
    ],
)
def test_refused(lower: Tensor, message: str) -> None:
    ones = torch.ones(2, 2)
    with pytest.raises(ValueError, match=message):
        tridiagonal_solve(lower, ones, ones, ones)


def test_places_outside_the_matrix_are_not_looked_at() -> None:
    """lower[0] and upper[n-1] may be anything, and their gradients are zero."""
    lower, diagonal, upper, rhs = systems(2, 4, dtype=torch.float64)
    lower[:, 0], upper[:, -1] = torch.nan, torch.inf
    lower.requires_grad_()
    found = tridiagonal_solve(lower, diagonal, upper, rhs)
    (gradient,) = torch.autograd.grad(found.sum(), lower)

    torch.testing.assert_close(found, dense(lower, diagonal, upper, rhs))
    assert torch.equal(torch.zeros(2, dtype=torch.float64), gradient[:, 0])


@needs_compiler
@each("dtype", [torch.float64, torch.float32])
def test_a_denormal_pivot_divides(dtype: torch.dtype) -> None:
    """Its inverse is infinite, but not the solution."""
    tiny = torch.finfo(dtype).tiny / 16
    diagonal, rhs = torch.tensor([[tiny, 1.0]], dtype=dtype), torch.tensor([[3 * tiny, 2.0]], dtype=dtype)

    found = tridiagonal_solve(torch.zeros_like(rhs), diagonal, torch.zeros_like(rhs), rhs)

    assert [[3.0, 2.0]] == found.tolist()
