"""nms by value: every kernel against a plain loop in Python; equal scores, NaN, empty boxes; compiled; bad shapes."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import VmapUnavailable
from gallery_values import dtypes, load, needs_compiler, random

nms = load("nms").nms

kernels = pytest.mark.parametrize("kernel", [pytest.param("cpp", marks=needs_compiler), "numba", "default"])


def made(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Boxes that overlap now and then, on a grid of quarters, so that no dtype rounds an overlap."""
    corners, sizes, scores = (random(count, n, dtype=torch.float64, seed=n) for n in (2, 3, 1))
    corners, sizes = (4 * corners).round(), (4 * sizes[:, :2]).round().abs() + 1
    return torch.cat((corners, corners + sizes), 1).to(dtype) / 4, scores.squeeze(1).to(dtype)


def area(left: float, top: float, right: float, bottom: float) -> float:
    return (right - left) * (bottom - top)


def overlap(one: list[float], other: list[float]) -> float:
    """The area in both boxes over the area in any."""
    corners = [max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])]
    shared = area(*corners) if corners[2] > corners[0] and corners[3] > corners[1] else 0.0
    every = area(*one) + area(*other) - shared
    return shared / every if every else 0.0


def plain(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    """The definition, in Python's floating-point numbers."""
    rows, ranks = boxes.tolist(), scores.tolist()
    kept: list[int] = []
    for index in sorted(range(len(rows)), key=lambda i: (-ranks[i], i)):
        if all(overlap(rows[index], rows[better]) <= threshold for better in kept):
            kept.append(index)
    return kept


@pytest.fixture(autouse=True)
def needs_numba(request) -> None:
    if "numba" in request.node.name:
        pytest.importorskip("numba")


@kernels
@dtypes
def test_values(dtype, kernel) -> None:
    for count in (0, 1, 70):
        boxes, scores = made(count, dtype)
        for threshold in (0.0, 0.3, 0.7):
            with nms.use_kernel(kernel):
                kept = nms(boxes, scores, threshold)

            assert plain(boxes, scores, threshold) == kept.tolist()


@needs_compiler
def test_more_boxes_than_a_tile() -> None:
    boxes, scores = made(600, torch.float32)
    boxes += torch.arange(600.0).unsqueeze(1) % 7 * 5  # spread out: many are kept

    kept = nms(boxes, scores, 0.3)

    assert plain(boxes, scores, 0.3) == kept.tolist()
    assert 64 < len(kept) < 600


TWO_AND_ONE = [[0.0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 6, 6]]
EDGES = {
    "of equal scores the first box is kept": (TWO_AND_ONE, [1.0, 1.0, 1.0], [0, 2]),
    "an overlap as large as the threshold is kept": ([[0.0, 0, 1, 1], [0, 0, 1, 2]], [2.0, 1.0], [0, 1]),
    "empty boxes and NaN suppress nothing": (
        [[1.0, 1, 1, 1], [1, 1, 1, 1], [0, 0, torch.nan, 2], [0, 0, 2, 2]],
        [4.0, 3.0, 2.0, 1.0],
        [0, 1, 2, 3],
    ),
    "NaN is the best score": (TWO_AND_ONE, [torch.inf, torch.nan, 0.0], [1, 2]),
}


@kernels
@each(("boxes", "scores", "kept"), EDGES.values(), ids=EDGES)
def test_edges(kernel, boxes, scores, kept) -> None:
    with nms.use_kernel(kernel):
        assert kept == nms(torch.tensor(boxes), torch.tensor(scores), 0.5).tolist()


def test_one_graph_for_every_number_of_boxes() -> None:
    """The size of the result is a symbol that no input decides."""
    torch.compiler.reset()

    def total(boxes: Tensor, scores: Tensor) -> Tensor:
        return boxes[nms(boxes, scores, 0.3)].sum(0)

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (30, 12, 50):
        boxes, scores = made(count, torch.float64)

        assert torch.equal(total(boxes, scores), compiled(boxes, scores))


def test_a_batch_is_refused() -> None:
    """Samples would have results of different sizes."""
    boxes, scores = made(5, torch.float64)
    with pytest.raises(VmapUnavailable, match="each sample of a batch keeps another number of boxes"):
        torch.vmap(lambda scores: nms(boxes, scores, 0.5))(scores.expand(2, 5).clone())


def test_boxes_get_no_gradient_from_the_indices() -> None:
    boxes, scores = made(5, torch.float64)

    assert not nms(boxes.requires_grad_(), scores.requires_grad_(), 0.5).requires_grad


@each(
    ("boxes", "scores", "message"),
    [
        ((5, 3), (5,), r"gallery::nms: 'boxes' must be \(n 4\)"),
        ((4,), (4,), r"'boxes' must be \(n 4\)"),
        ((5, 4), (4,), r"'scores' must be \(n\) with n = 5"),
        ((5, 4), (5, 1), r"'scores' must be \(n\)"),
    ],
)
def test_shapes_that_do_not_fit(boxes, scores, message) -> None:
    with pytest.raises(ValueError, match=message):
        nms(torch.ones(boxes), torch.ones(scores), 0.5)
