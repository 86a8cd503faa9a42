"""pair_distances and pair_forces against plain PyTorch in float64: values, forces, what trains on forces, refusals."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
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

forces = load("pair_forces")  # first: pair_distances imports what lies beside it
distances = load("pair_distances")
pair_distances = distances.pair_distances

PAIRS = torch.tensor([[0, 1], [3, 1], [2, 0], [1, 0], [4, 2], [0, 1]])
periodic = each("is_periodic", [False, True])


def positions_and_cell(is_periodic: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Five atoms, some of them some cells away; the values are those of dtype."""
    cell = 3 * torch.eye(3, dtype=dtype) + random(3, 3, dtype=dtype, seed=5) / 4
    return 3 * random(5, 3, dtype=dtype), cell if is_periodic else None


def plain(positions: Tensor, pairs: Tensor, cell: Tensor | None = None) -> Tensor:
    """The image whose place in the cell is nearest to zero, by search over the images instead of rounding."""
    d = positions[pairs[:, 0]] - positions[pairs[:, 1]]
    if cell is None:
        return d.norm(dim=-1)
    shifts = torch.cartesian_prod(*[torch.arange(-6.0, 7.0, dtype=d.dtype)] * 3)
    with torch.no_grad():
        fraction = d @ torch.linalg.inv(cell)
        nearest = (fraction.unsqueeze(1) - shifts).abs().amax(-1).argmin(-1)
    return (d - shifts[nearest] @ cell).norm(dim=-1)


@needs_compiler
@periodic
@dtypes_in_layouts
def test_distances(layout: Callable[[Tensor], Tensor], dtype: torch.dtype, is_periodic: bool) -> None:
    positions, cell = positions_and_cell(is_periodic, dtype)
    positions, pairs = layout(positions), layout(PAIRS)

    found = pair_distances(positions, pairs, cell)

    exact = plain(positions.double(), pairs, None if cell is None else cell.double())
    assert_near(found, exact, dtype, budget=4 * BUDGETS[dtype])  # differences of positions up to 10


@needs_compiler
@periodic
@dtypes
def test_forces_and_their_gradient(dtype: torch.dtype, is_periodic: bool) -> None:
    """The C++ of both, against automatic differentiation of the search."""
    positions, cell = positions_and_cell(is_periodic, dtype)
    points = positions if cell is None else torch.cat((positions, cell))
    inverse = None if cell is None else forces.inverse_of(cell)
    pull, direction = random(len(PAIRS), dtype=dtype, seed=1), random(*points.shape, dtype=dtype, seed=2)
    found = forces.pair_forces(pull, points, PAIRS, inverse)
    found_grads = forces.pair_forces_grad(direction, pull, points, PAIRS, inverse)

    def energy(pull: Tensor, points: Tensor) -> Tensor:
        split = (points, None) if cell is None else (points[:-3], points[-3:])
        return (pull * plain(split[0], PAIRS, split[1])).sum()

    def along(pull: Tensor, points: Tensor) -> Tensor:
        return (torch.func.grad(energy, argnums=1)(pull, points) * direction.double()).sum()

    exact = torch.func.grad(energy, argnums=1)(pull.double(), points.double())
    exact_grads = torch.func.grad(along, argnums=(0, 1))(pull.double(), points.double())
    near = partial(assert_near, dtype=dtype, budget=8 * BUDGETS[dtype])
    near(found, exact)
    near(found_grads[0], exact_grads[0])
    near(found_grads[1], exact_grads[1])


@periodic
def test_derivatives(is_periodic: bool) -> None:
    """With respect to positions and cell."""
    inputs = [tensor for tensor in positions_and_cell(is_periodic, torch.float64) if tensor is not None]

    def of(function: Callable[..., Tensor], positions: Tensor, *cell: Tensor) -> Tensor:
        return function(positions, PAIRS, *cell)

    assert_derivatives(partial(of, pair_distances), partial(of, plain), *inputs)


def test_distance_of_zero_has_gradients_of_zero() -> None:
    """Two atoms in one place: the distance, the force and the force's gradient are 0, where plain PyTorch has NaN."""
    positions = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], requires_grad=True)
    found = pair_distances(positions, torch.tensor([[0, 1]]))
    (force,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
    (second,) = torch.autograd.grad(force.square().sum() + force.sum(), positions)

    assert [0.0] == found.tolist()
    assert torch.equal(torch.zeros(2, 3), force.detach())
    assert torch.equal(torch.zeros(2, 3), second)


@needs_compiler
def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    """Many pairs of few atoms, in float32, bit for bit."""
    pairs = torch.randint(0, 50, (40_000, 2), generator=torch.Generator().manual_seed(0))
    points, pull = random(50, 3, dtype=torch.float32), random(40_000, dtype=torch.float32, seed=1)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(forces.pair_forces_cpp(pull, points, pairs, None))
    torch.set_num_threads(1)

    assert torch.equal(results[0], results[1])
    exact = forces.pair_forces.__wrapped__(pull.double(), points.double(), pairs, None)
    torch.testing.assert_close(results[0].double(), exact, rtol=1e-4, atol=1e-4)


BAD_INDICES = {"too large": [[0, 1], [1, 5]], "negative": [[0, 1], [-1, 0]], "huge": [[0, 1], [2**62, 0]]}


@needs_compiler
@periodic
@each("pairs", BAD_INDICES.values())
def test_index_that_is_no_atom(pairs: list[list[int]], is_periodic: bool) -> None:
    """Also one that would be a row of the cell."""
    positions, cell = positions_and_cell(is_periodic, torch.float32)
    numbers = rf"pair 1 is \({pairs[1][0]}, {pairs[1][1]}\), expected two indices of positions, in \[0, 5\)"
    with pytest.raises(RuntimeError, match=numbers):
        pair_distances(positions, torch.tensor(pairs), cell)


@needs_compiler
def test_index_without_atoms() -> None:
    with pytest.raises(RuntimeError, match=r"in \[0, 0\)"):
        pair_distances(torch.ones(0, 3), torch.tensor([[0, 0]]))


REFUSED: dict[str, tuple[tuple[Tensor, ...], str]] = {
    "positions": ((torch.ones(4, 2), PAIRS), r"'positions' must be \(a 3\)"),
    "pairs": ((torch.ones(5, 3), PAIRS.int()), r"'pairs' must be \(pairs, 2\), int64, found torch.int32"),
    "triples": ((torch.ones(5, 3), torch.ones(3, 3).long()), r"'pairs' must be \(p 2\)"),
    "cell": ((torch.ones(5, 3), PAIRS, torch.ones(3)), r"'cell' must be \(3 3\)"),
    "dtype": ((torch.ones(5, 3), PAIRS, torch.eye(3).double()), r"'cell' must be .* found torch.float64"),
}


@each(("arguments", "message"), REFUSED.values())
def test_refused(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pair_distances(*arguments)


def test_pull_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'pairs' must be \(p 2\) with p = 5"):
        forces.pair_forces(torch.ones(5), torch.ones(5, 3), PAIRS, None)


@interpreted
@periodic
def test_triton_interpreted(is_periodic: bool) -> None:
    """Two roundings: the interpreter truncates bfloat16. An index that is not an atom is a distance of NaN."""
    for dtype, budget in BUDGETS.items():
        positions, cell = positions_and_cell(is_periodic, dtype)
        found = distances.pair_distances_cuda(positions, PAIRS, cell)
        exact = plain(positions.double(), PAIRS, None if cell is None else cell.double())
        assert_near(found, exact, dtype, budget=8 * budget)
    outside = torch.tensor([[0, 5], [-1, 0], [0, 1]])
    found = distances.pair_distances_cuda(positions, outside, cell)
    assert [True, True, False] == found.isnan().tolist()
    assert (0,) == distances.pair_distances_cuda(positions, PAIRS[:0], cell).shape


@each("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_autocast(dtype: torch.dtype) -> None:
    """Also to another lower dtype than that of the arguments; a lower dtype becomes float32."""
    positions, cell = positions_and_cell(True, dtype)
    with torch.autocast("cpu", torch.float16):
        found = pair_distances(positions, PAIRS, cell)

    assert torch.promote_types(dtype, torch.float32) == found.dtype
    assert_near(found, plain(positions.double(), PAIRS, cell.double()), found.dtype, budget=8 * BUDGETS[found.dtype])
