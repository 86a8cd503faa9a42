"""Distances of listed pairs of points, as in molecular dynamics, whose forces are trained through second derivatives.

    distance_p = |d_p - round(d_p · cell⁻¹) · cell|,    d_p = positions[i_p] - positions[j_p]

Shapes: positions: (atoms, 3); pairs: (pairs, 2), indices; cell: (3, 3), a vector per row, or None; distances: (pairs,).
Dtypes: positions and cell float64, float32, bfloat16, float16; pairs int64. The arithmetic is float64 or float32.
With a cell each pair is that of nearest images, as far as the cell is not so oblique that rounding misses the nearest.
A distance of zero (also one whose square underflows) has gradients 0, where d / |d| would be NaN.
An index that is not an atom raises on the CPU; on a GPU, which is not waited for, that distance is NaN.
The gradients are in pair_forces.py, beside this file: forces are a gradient, and a loss on forces takes another.
Source: Allen and Tildesley 2017, "Computer Simulation of Liquids", sections 1.6.3 (nearest images) and 2.7 (forces).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pair_forces import geometry, inverse_of, pair_forces
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, tl, triton_kernel


def check_arguments(positions: Tensor, pairs: Tensor, cell: Tensor | None) -> None:
    """Shapes and dtypes; indices are looked at where they are read."""
    expected = {
        "positions": (positions, positions.dim() == 2 and positions.shape[1] == 3, "(atoms, 3)"),
        "pairs": (pairs, pairs.dim() == 2 and pairs.shape[1] == 2 and pairs.dtype == torch.int64, "(pairs, 2), int64"),
        "cell": (
            cell,
            cell is None or (cell.shape == (3, 3) and cell.dtype == positions.dtype),
            f"(3, 3), {positions.dtype}",
        ),
    }
    for name, (tensor, is_right, what) in expected.items():
        if not is_right:
            found = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise ValueError(f"gallery::pair_distances: '{name}' must be {what}, found {found}")


def points_and_inverse(positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What pair_forces takes: the rows of the cell after the positions, and the inverse of the cell."""
    return (positions, None) if cell is None else (torch.cat((positions, cell)), inverse_of(cell))


@custom_op(
    "gallery::pair_distances",
    outputs=("distances",),
    reference=True,
    shapes="positions: [a] 3, pairs: p 2, cell?: 3 3 -> distances: p",
)
def pair_distances(positions: Tensor, pairs: Tensor, cell: Tensor | None = None) -> Tensor:
    """The distance of each pair."""
    check_arguments(positions, pairs, cell)
    points, inverse = points_and_inverse(positions, cell)
    return geometry(points, pairs, inverse)[0].to(positions.dtype)


pair_distances_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "pair_distances")


@pair_distances.register_kernel("cpu", name="cpp", layouts="contiguous")
def pair_distances_cpu(positions, pairs, cell) -> Tensor:
    """C++: no table of displacements; indices are checked on the way."""
    check_arguments(positions, pairs, cell)
    points, inverse = points_and_inverse(positions, cell)
    return pair_distances_cpp(points, pairs, inverse)


@triton_kernel
def distance(points, pairs, inverse, distances, count, atoms, periodic: tl.constexpr, block: tl.constexpr) -> None:
    """Distances of a block of pairs; the cell is read from after the atoms."""
    pair = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = pair < count
    i = tl.load(pairs + 2 * pair, mask=inside, other=-1)
    j = tl.load(pairs + 2 * pair + 1, mask=inside, other=-1)
    known = (i >= 0) & (i < atoms) & (j >= 0) & (j < atoms)
    number = tl.float64 if distances.dtype.element_ty == tl.float64 else tl.float32
    x = tl.load(points + 3 * i, mask=known, other=0).to(number) - tl.load(points + 3 * j, mask=known, other=0).to(
        number
    )
    y = tl.load(points + 3 * i + 1, mask=known, other=0).to(number) - tl.load(
        points + 3 * j + 1, mask=known, other=0
    ).to(number)
    z = tl.load(points + 3 * i + 2, mask=known, other=0).to(number) - tl.load(
        points + 3 * j + 2, mask=known, other=0
    ).to(number)
    if periodic:
        cell = points + 3 * atoms
        a = tl.floor(x * tl.load(inverse) + y * tl.load(inverse + 3) + z * tl.load(inverse + 6) + 0.5)
        b = tl.floor(x * tl.load(inverse + 1) + y * tl.load(inverse + 4) + z * tl.load(inverse + 7) + 0.5)
        c = tl.floor(x * tl.load(inverse + 2) + y * tl.load(inverse + 5) + z * tl.load(inverse + 8) + 0.5)
        x -= a * tl.load(cell).to(number) + b * tl.load(cell + 3).to(number) + c * tl.load(cell + 6).to(number)
        y -= a * tl.load(cell + 1).to(number) + b * tl.load(cell + 4).to(number) + c * tl.load(cell + 7).to(number)
        z -= a * tl.load(cell + 2).to(number) + b * tl.load(cell + 5).to(number) + c * tl.load(cell + 8).to(number)
    found = tl.where(known, tl.sqrt(x * x + y * y + z * z), float("nan"))
    tl.store(distances + pair, found.to(distances.dtype.element_ty), mask=inside)


@pair_distances.register_kernel("cuda", name="triton", layouts="contiguous")
def pair_distances_cuda(positions, pairs, cell) -> Tensor:
    """Triton: one lane per pair."""
    check_arguments(positions, pairs, cell)
    points, inverse = points_and_inverse(positions, cell)
    distances = positions.new_empty(pairs.shape[0])
    if count := pairs.shape[0]:  # a grid of size 0 is an error
        scale = points if inverse is None else inverse  # not read without a cell
        arguments = points, pairs, scale, distances, count, positions.shape[0]
        distance[(-(-count // 256),)](*arguments, periodic=cell is not None, block=256)
    return distances


@pair_distances.register_backward
def _(grad, positions, pairs, cell):
    points, inverse = points_and_inverse(positions, cell)
    points_grad = pair_forces(grad, points, pairs, inverse)
    return {
        "positions": lambda: points_grad[: positions.shape[0]],
        "cell": lambda: points_grad[positions.shape[0] :],
    }


for device_type in ("cpu", "cuda"):  # as torch.cdist; a lower dtype would also part the cell from the positions
    pair_distances.register_autocast(device_type, "float32")


@pair_distances.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    pairs = torch.tensor([[0, 1], [3, 1], [2, 0], [1, 0], [2, 2]], device=make(1).device)  # one twice, one with itself
    cell = (make(3, 3, low=-0.3, high=0.3).detach() + 3 * torch.eye(3, device=make(1).device)).to(make(1).dtype)
    yield Sample(make(4, 3), pairs)
    yield Sample(make(4, 3, low=-4.0, high=4.0), pairs, cell.requires_grad_())
    yield Sample(make(4, 3), pairs[:0])  # no pairs
    yield Sample(make(0, 3), pairs[:0])  # no atoms
    yield Sample(make(1, 3), pairs[4:] - 2)  # a distance of zero
    yield Sample(make(2, 3), pairs).raises(
        Exception, match="pair 1 is .3, 1., expected two indices .* in .0, 2.|index out of", on="cpu"
    )
    yield Sample(make(4, 3), pairs - 1).raises(Exception, match="pair 0 is .-1, 0.|index out of", on="cpu")
    yield Sample(make(4, 2), pairs).raises(ValueError, match="'positions' must be .a 3.")
    yield Sample(make(4, 3), pairs.int()).raises(ValueError, match="'pairs' must be .pairs, 2., int64, found")


if __name__ == "__main__":
    pair_distances.check()
