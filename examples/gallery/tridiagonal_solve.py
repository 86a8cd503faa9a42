"""Tridiagonal systems, many at a time, by Thomas's algorithm; the gradient is the solve with the transposed matrix.

    lower[i] · x[i-1]  +  diagonal[i] · x[i]  +  upper[i] · x[i+1]  =  rhs[i]         0 <= i < n

Shapes: all four (..., n), one system per row; lower[..., 0] and upper[..., n-1] are not looked at. For one matrix and
many right-hand sides give the diagonals as `diagonal.expand(many, n)`: they are neither copied nor summed by hand.
Dtypes: all four float64, float32, bfloat16 or float16; the arithmetic is float64 for float64, else float32.
There is no pivoting: safe for diagonally dominant and for symmetric positive definite matrices. A pivot that is zero
raises on the CPU, with its system and row; on a GPU, which is not waited for, that system is infinite or NaN.
Source: Golub and Van Loan 2013, "Matrix Computations", section 4.3. Gradient: w = A⁻ᵀ grad, A_grad = -w xᵀ; Giles 2008,
"Collected matrix derivative results for forward and reverse mode algorithmic differentiation", section 2.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def check_arguments(*systems: Tensor) -> None:
    """Four tensors of one shape and dtype, with a dimension to solve along."""
    *_, rhs = systems
    for name, tensor in zip(("lower", "diagonal", "upper", "rhs"), systems, strict=True):
        if rhs.dim() == 0 or tensor.shape != rhs.shape or tensor.dtype != rhs.dtype:
            found = f"'{name}' is {tensor.dtype} {tuple(tensor.shape)}, 'rhs' {rhs.dtype} {tuple(rhs.shape)}"
            raise ValueError(f"gallery::tridiagonal_solve: all must have one dtype and one shape (..., n): {found}")


def before(x: Tensor) -> Tensor:
    """x[i-1] at i, and 0 at the first."""
    return F.pad(x, (1, 0))[..., : x.shape[-1]]


def after(x: Tensor) -> Tensor:
    """x[i+1] at i, and 0 at the last."""
    return F.pad(x, (0, 1))[..., 1:]


def eliminate_and_substitute(
    lower: Tensor, diagonal: Tensor, upper: Tensor, rhs: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The solution, and by row the pivots."""
    wide = torch.promote_types(rhs.dtype, torch.float32)
    columns = (x.to(wide).unbind(-1) for x in (before(after(lower)), diagonal, after(before(upper)), rhs))
    ratio = value = torch.zeros_like(rhs[..., :1].to(wide).sum(-1))
    pivots, eliminated, found = [], [], [value]
    for a, b, c, d in zip(*columns, strict=True):
        pivots.append(b - a * ratio)
        ratio, value = c / pivots[-1], (d - a * value) / pivots[-1]
        eliminated.append((ratio, value))
    for ratio, value in reversed(eliminated):
        found.append(value - ratio * found[-1])
    solution = torch.stack(found[:0:-1], -1).to(rhs.dtype) if pivots else rhs.clone()
    return solution, pivots


@custom_op(
    "gallery::tridiagonal_solve",
    outputs=("solution",),
    reference=True,
    shapes="lower: *b [n], diagonal: *b [n], upper: *b [n], rhs: *b [n] -> solution: *b [n]",
)
def tridiagonal_solve(lower: Tensor, diagonal: Tensor, upper: Tensor, rhs: Tensor) -> Tensor:
    """Solves one tridiagonal system per row."""
    check_arguments(lower, diagonal, upper, rhs)
    return eliminate_and_substitute(lower, diagonal, upper, rhs)[0]


def thomas_in_pytorch(*systems: Tensor) -> Tensor:
    """What the C++ does, where it cannot be built."""
    solution, pivots = eliminate_and_substitute(*systems)
    if any((pivot == 0).any() for pivot in pivots):
        raise RuntimeError(
            "gallery::tridiagonal_solve: a pivot is zero: solve the dense matrix with torch.linalg.solve"
        )
    return solution


thomas_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "thomas", fallback=thomas_in_pytorch)


# Rows, not tensors, have to lie in one piece: expanded diagonals are not copied.
@tridiagonal_solve.register_kernel("cpu", name="cpp", layouts="contiguous_rows")
def tridiagonal_solve_cpu(lower, diagonal, upper, rhs) -> Tensor:
    """C++: one vector lane per system, so the recurrence needs no parallel algorithm; blocks of systems in threads."""
    check_arguments(lower, diagonal, upper, rhs)
    if rhs.numel() == 0:
        return rhs.new_empty(rhs.shape)
    rows = (x.reshape(-1, rhs.shape[-1]) for x in (lower, diagonal, upper, rhs))
    return thomas_cpp(*rows).view(rhs.shape)


@tridiagonal_solve.register_fake
def _(lower, diagonal, upper, rhs):
    check_arguments(lower, diagonal, upper, rhs)
    return rhs.new_empty(rhs.shape)


# The transposed matrix has upper[i-1] below its diagonal and lower[i+1] above, and the same pivots.
@tridiagonal_solve.register_backward
def _(grad, lower, diagonal, upper, solution):
    w = tridiagonal_solve(before(upper), diagonal, after(lower), grad)
    return {
        "lower": lambda: -w * before(solution),
        "diagonal": lambda: -w * solution,
        "upper": lambda: -w * after(solution),
        "rhs": w,
    }


# A dx = drhs - dA x
@tridiagonal_solve.register_jvp
def _(tangent_lower, tangent_diagonal, tangent_upper, tangent_rhs, lower, diagonal, upper, solution):
    change = torch.zeros_like(solution) if tangent_rhs is None else tangent_rhs
    pairs = ((tangent_lower, before(solution)), (tangent_diagonal, solution), (tangent_upper, after(solution)))
    for tangent, x in pairs:
        change = change if tangent is None else change - tangent * x
    return tridiagonal_solve(lower, diagonal, upper, change)


@tridiagonal_solve.register_vmap
def _(info, in_dims, lower, diagonal, upper, rhs):
    dims = zip((lower, diagonal, upper, rhs), in_dims, strict=True)
    systems = [x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in dims]
    return tridiagonal_solve(*systems), 0


for device_type in ("cpu", "cuda"):
    tridiagonal_solve.register_autocast(device_type, "promote")


@tridiagonal_solve.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    for shape in ((3, 5), (2, 2, 4), (3, 1), (0, 3), (2, 0)):
        yield Sample(make(*shape), make(*shape, low=2.5, high=4.0), make(*shape), make(*shape))
    yield Sample(make(3), make(4), make(4), make(4)).raises(ValueError, match="'diagonal' must be")
    zero = torch.zeros_like(make(2, 3))
    yield Sample(make(2, 3), zero, make(2, 3), make(2, 3)).raises(RuntimeError, match="pivot", on="cpu")


if __name__ == "__main__":
    tridiagonal_solve.check()
