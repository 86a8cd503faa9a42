"""Forces along listed pairs of points, and their gradient: what pair_distances.py differentiates to, once and twice.

    points_grad = Σ_p pull_p · ∂distance_p/∂points,    ∂distance_p/∂d_p = u_p = d_p / |d_p|, and 0 where d_p is 0
    d_p = points[i_p] - points[j_p] - shift_p · cell,    shift_p = round((points[i_p] - points[j_p]) · inverse)

The rows of a periodic cell move as atoms do, and come last among the points; inverse is that of the cell, or None.
Dtypes: pull and points float64, float32, bfloat16, float16; pairs int64; inverse float64 for float64, else float32.
The C++ sums pairs in one order, whatever the number of threads; the reference does not on a GPU (`index_add`).
Source: Allen and Tildesley 2017, "Computer Simulation of Liquids", section 2.7; the second derivative is derived below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def inverse_of(cell: Tensor) -> Tensor:
    """What turns a displacement into a number of cells: piecewise constant after rounding, so without a gradient."""
    return torch.linalg.inv(cell.detach().to(torch.promote_types(cell.dtype, torch.float32))).contiguous()


def difference(rows: Tensor, pairs: Tensor, shift: Tensor | None) -> Tensor:
    """rows[i] - rows[j] - shift · the last three rows."""
    atoms = rows if shift is None else rows[:-3]  # index_select refuses what is not an atom, also negative numbers
    d = atoms.index_select(0, pairs[:, 0]) - atoms.index_select(0, pairs[:, 1])
    return d if shift is None else d - shift @ rows[-3:]


def scatter(values: Tensor, rows: int, pairs: Tensor, shift: Tensor | None) -> Tensor:
    """The adjoint of difference."""
    sums = values.new_zeros(rows if shift is None else rows - 3, 3)
    sums = sums.index_add(0, pairs[:, 0], values).index_add(0, pairs[:, 1], -values)
    return sums if shift is None else torch.cat((sums, -shift.t() @ values))


def geometry(points: Tensor, pairs: Tensor, inverse: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Distances, unit vectors and reciprocal distances (both 0 for a distance of 0), and shifts."""
    wide = points.to(torch.promote_types(points.dtype, torch.float32))
    shift = None if inverse is None else (difference(wide.detach()[:-3], pairs, None) @ inverse).round()
    d = difference(wide, pairs, shift)
    square = d.square().sum(-1)
    zero = square == 0
    distance = square.masked_fill(zero, 1).sqrt()
    reciprocal = (1 / distance).masked_fill(zero, 0)
    return distance.masked_fill(zero, 0), d * reciprocal.unsqueeze(1), reciprocal, shift


def check_dtypes(op: str, points: Tensor, **others: Tensor) -> None:
    """All that of points; indices are looked at where they are read."""
    for name, tensor in others.items():
        if tensor.dtype != points.dtype:
            raise ValueError(f"gallery::{op}: '{name}' must be {points.dtype}, found {tensor.dtype}")


@custom_op("gallery::pair_forces", outputs=("points_grad",), non_differentiable=("inverse",), reference=True)
def pair_forces(pull: Tensor, points: Tensor, pairs: Tensor, inverse: Tensor | None) -> Tensor:
    """The gradient of Σ_p pull_p · distance_p with respect to points: each pair pulls along its unit vector."""
    check_dtypes("pair_forces", points, pull=pull)
    _, unit, _, shift = geometry(points, pairs, inverse)
    return scatter(pull.unsqueeze(1) * unit, points.shape[0], pairs, shift).to(points.dtype)


# With w_p the difference of `direction` along a pair, Σ points_grad · direction = Σ_p pull_p u_p · w_p, whose gradients
# are u·w with respect to pull, and (pull / |d|) (w - u (u·w)) with respect to d.
@custom_op(
    "gallery::pair_forces_grad",
    outputs=("pull_grad", "points_grad"),
    non_differentiable=("inverse",),
    reference=True,
)
def pair_forces_grad(
    direction: Tensor, pull: Tensor, points: Tensor, pairs: Tensor, inverse: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of Σ pair_forces · direction with respect to pull and points."""
    check_dtypes("pair_forces_grad", points, pull=pull, direction=direction)
    _, unit, reciprocal, shift = geometry(points, pairs, inverse)
    w = difference(direction.to(unit.dtype), pairs, shift)
    along = (unit * w).sum(-1)
    turned = (pull * reciprocal).unsqueeze(1) * (w - unit * along.unsqueeze(1))
    return along.to(points.dtype), scatter(turned, points.shape[0], pairs, shift).to(points.dtype)


# With a cell the last three points are its rows.
def shapes(inverse) -> str:
    """Of pair_forces."""
    a = "[a]" if inverse is None else "[a+3]"
    return f"pull: p, points: {a} 3, pairs: p 2, inverse?: 3 3 -> points_grad: {a} 3"


pair_forces.register_shapes(shapes)
pair_forces_grad.register_shapes(
    lambda inverse: f"direction: [a{'+3' * (inverse is not None)}] 3, {shapes(inverse)}, pull_grad: p"
)


# The C++ takes what the ops take; where it cannot be built, the references above run, after a warning.
SOURCE = Path(__file__).with_name("pair_distances.cpp")
pair_forces_cpp = cpp_kernel(SOURCE, "pair_forces")
pair_forces_grad_cpp = cpp_kernel(SOURCE, "pair_forces_grad")


@pair_forces.register_kernel("cpu", name="cpp", layouts="contiguous")
def _(pull, points, pairs, inverse):
    return pair_forces_cpp(pull, points, pairs, inverse)


@pair_forces_grad.register_kernel("cpu", name="cpp", layouts="contiguous")
def _(direction, pull, points, pairs, inverse):
    return pair_forces_grad_cpp(direction, pull, points, pairs, inverse)


@pair_forces.register_backward
def _(grad, pull, points, pairs, inverse):
    return dict(zip(("pull", "points"), pair_forces_grad(grad, pull, points, pairs, inverse), strict=True))


def calls(make: Callable[..., Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Arguments of pair_forces: in an open space, in an oblique cell, and without pairs."""
    unit = torch.eye(3, dtype=make(1).dtype, device=make(1).device)
    cell = 3 * unit + make(3, 3, low=-0.3, high=0.3)
    pairs = torch.tensor([[0, 1], [3, 1], [2, 0], [1, 0], [2, 2]], device=unit.device)  # one twice, one with itself
    yield make(5), make(4, 3), pairs, None
    points = torch.cat((make(4, 3, low=-4.0, high=4.0), cell)).detach().requires_grad_()
    yield make(5), points, pairs, inverse_of(cell)
    yield make(0), make(4, 3), pairs[:0], None


@pair_forces.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield from (Sample(*call) for call in calls(make))
    (_, *others), *_ = calls(make)
    yield Sample(make(4), *others).raises(Exception, match="'pairs' must be .p 2. with p = 4")


@pair_forces_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield from (Sample(make(*points.shape), pull, points, *rest) for pull, points, *rest in calls(make))


if __name__ == "__main__":
    pair_forces.check()
    pair_forces_grad.check()
