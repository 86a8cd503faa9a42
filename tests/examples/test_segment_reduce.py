"""segment_reduce by value: every kernel against a loop in float64, derivatives against those of a loop, bad offsets."""

import itertools
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

segments, spread = load("segment_reduce"), load("segment_spread")
segment_reduce, segment_spread = segments.segment_reduce, spread.segment_spread

# Empty segments at the ends and inside, one row, many rows, no rows, no segments, no features; widths of the
# C++ kernel's tiles.
CASES = [
    ((7, 3), [0, 0, 2, 2, 3, 7, 7]),
    ((40, 2, 67), [0, 1, 40]),
    ((11, 64), [0, 3, 3, 11]),
    ((11, 100), [0, 3, 3, 11]),
    ((11, 128), [0, 3, 3, 11]),
    ((9,), [0, 4, 9]),
    ((0, 4), [0, 0]),
    ((0, 4), [0]),
    ((3, 0), [0, 3]),
]
cases = each(("shape", "offsets"), CASES)
reductions = each("reduce", ["sum", "mean", "max"])


def loop(x: Tensor, offsets: list[int], reduce: str) -> Tensor:
    """One segment after another, with the gradient of a maximum at its first row."""
    results = [reduced(x[first:last], reduce) for first, last in itertools.pairwise(offsets)]
    return torch.stack(results) if results else x[:0]


def reduced(rows: Tensor, reduce: str) -> Tensor:
    if reduce == "max":
        return rows.max(0).values if len(rows) else torch.full(rows.shape[1:], -torch.inf, dtype=rows.dtype)
    return rows.sum(0) / (max(len(rows), 1) if reduce == "mean" else 1)


def argmax(x: Tensor, offsets: list[int]) -> Tensor:
    """The first row of each maximum; the number of rows where a segment has none."""
    starts = list(itertools.pairwise(offsets))
    found = [a + x[a:b].argmax(0) if b > a else torch.full(x.shape[1:], len(x)) for a, b in starts]
    return torch.stack(found) if found else torch.empty(0, *x.shape[1:], dtype=torch.int64)


def with_ties_and_nan(x: Tensor) -> Tensor:
    x = x.clone()
    x.view(-1)[::5] = 1.0
    x.view(-1)[3::17] = torch.nan
    return x


@needs_compiler
@dtypes_in_layouts
@reductions
@cases
def test_cpp(shape, offsets, reduce, layout, dtype) -> None:
    x = layout(random(*shape, dtype=dtype))
    with segment_reduce.use_kernel("cpp"):
        found = segment_reduce(x, torch.tensor(offsets), reduce)

    assert dtype == found.dtype
    assert found.is_contiguous()
    assert_near(found, loop(x.double(), offsets, reduce), dtype)


@needs_compiler
@dtypes
@cases
def test_cpp_maximum_takes_the_first_row_and_nan_above_all(shape, offsets, dtype) -> None:
    x = with_ties_and_nan(random(*shape, dtype=dtype))
    found, rows, _ = segments.segment_reduce_cpp(x, torch.tensor(offsets), "max")

    assert_near(found, loop(x.double(), offsets, "max"), dtype)
    assert torch.equal(argmax(x, offsets), rows)


@needs_compiler
@dtypes_in_layouts
@each("mean", [False, True])
@cases
def test_spread(shape, offsets, mean, layout, dtype) -> None:
    counts = torch.tensor(offsets).diff()
    x = layout(random(len(counts), *shape[1:], dtype=dtype))
    with segment_spread.use_kernel("cpp"):
        found = segment_spread(x, torch.tensor(offsets), shape[0], mean)

    divisors = counts.clamp(min=1).view(-1, *[1] * (x.dim() - 1)) if mean else 1
    assert dtype == found.dtype
    assert found.is_contiguous()
    assert_near(found, (x.double() / divisors).repeat_interleave(counts, 0), dtype)


@needs_compiler
@each("offsets", [[1, 3], [0, 2], [0, 2**40, 3], [0.0, 3.0], [0, 1, 2, 3]])
def test_offsets_that_do_not_divide_the_rows_to_spread(offsets) -> None:
    with pytest.raises(RuntimeError, match="'offsets' must"):
        segment_spread(torch.ones(min(2, len(offsets) - 1), 2), torch.tensor(offsets), 3)


@cases
def test_numpy(shape, offsets) -> None:
    for dtype in (torch.float64, torch.float32):
        x = random(*shape, dtype=dtype)
        with segment_reduce.use_kernel("numpy"):
            found = segment_reduce(x, torch.tensor(offsets))

        assert_near(found, loop(x.double(), offsets, "sum"), dtype)


@interpreted
@cases
def test_triton_interpreted(shape, offsets) -> None:
    """The interpreter truncates bfloat16, hence two roundings."""
    for dtype, budget in BUDGETS.items():
        x = with_ties_and_nan(random(*shape, dtype=dtype))
        for reduce in ("sum", "mean", "max"):
            found, rows, _ = segments.segment_reduce_cuda(x, torch.tensor(offsets), reduce)

            assert_near(found, loop(x.double(), offsets, reduce), dtype, max(2 * budget, 1e-9))
        assert torch.equal(argmax(x, offsets), rows)


@interpreted
@each("offsets", [[1, 3], [0, 2], [0, 4], [0, 2, 1, 3], [-1, 3]])
def test_triton_marks_what_is_no_list_of_offsets(offsets) -> None:
    """Raising would make the host wait for the device."""
    found, *_ = segments.segment_reduce_cuda(torch.ones(3, 2), torch.tensor(offsets), "sum")

    assert found.isnan().any()


@needs_compiler
@each(
    ("offsets", "message"),
    [
        ([1, 3], "'offsets' must begin with 0, found 1"),
        ([0, 2], "'offsets' must end with the number of rows, 3, found 2"),
        ([0, 2**40, 3], "'offsets' must not decrease, found 1099511627776 before 3 at segment 1"),
        ([], r"'offsets' must be \(s\+1\)"),
        ([[0, 3]], r"'offsets' must be \(s\+1\)"),
        ([0.0, 3.0], "'offsets' must be int64 of shape"),
    ],
)
def test_offsets_that_do_not_divide_the_rows(offsets, message) -> None:
    offsets = torch.tensor(offsets, dtype=torch.int64) if not offsets else torch.tensor(offsets)
    with pytest.raises(RuntimeError, match=message):
        segment_reduce(torch.ones(3, 2), offsets)


@each(
    ("offsets", "message"),
    [
        (torch.tensor([0, 2]), "'offsets' must rise from 0 to 3"),
        (torch.tensor([0, 3], dtype=torch.int32), "the number of rows, in int64"),
    ],
)
def test_wrong_offsets_raise_in_numpy(offsets, message) -> None:
    with segment_reduce.use_kernel("numpy"), pytest.raises(RuntimeError, match=message):
        segment_reduce(torch.ones(3, 2), offsets)


def test_offsets_that_do_not_divide_the_rows_raise_under_vmap() -> None:
    offsets = torch.tensor([[0, 1, 3], [0, 1, 2]])
    with pytest.raises(RuntimeError, match="'offsets' must end with the number of rows, 3, found 2"):
        torch.vmap(partial(segment_reduce, torch.ones(3, 2)))(offsets)


@reductions
def test_derivatives(reduce) -> None:
    """-infinity, the maximum of nothing, is left out."""
    offsets = [0, 2, 2, 5]

    def finite(function, x: Tensor) -> Tensor:
        out = function(x)
        return torch.where(out.isinf(), 0, out)

    op = partial(segment_reduce, offsets=torch.tensor(offsets), reduce=reduce)
    expected = partial(loop, offsets=offsets, reduce=reduce)
    assert_derivatives(partial(finite, op), partial(finite, expected), random(5, 2, dtype=torch.float64))


def test_of_equal_maxima_the_first_has_the_gradient() -> None:
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    segment_reduce(x, torch.tensor([0, 1, 4, 4]), "max")[:2].sum().backward()

    assert [1, 1, 0, 0] == x.grad.tolist()


@reductions
def test_compiled_for_every_number_of_rows(reduce) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x, o: 2 * segment_reduce(x, o, reduce), fullgraph=True, backend="aot_eager")
    for offsets in ([0, 2, 5], [0, 1, 3, 6]):
        x = random(offsets[-1], 3, dtype=torch.float64).requires_grad_()
        (found,) = torch.autograd.grad(compiled(x, torch.tensor(offsets)).square().sum(), x)
        (expected,) = torch.autograd.grad((2 * loop(x, offsets, reduce)).square().sum(), x)

        torch.testing.assert_close(found, expected)


@needs_compiler
def test_the_same_every_time_and_for_every_number_of_threads() -> None:
    x, offsets = random(5000, 20, dtype=torch.float32), torch.tensor([0, 10, 4000, 4001, 5000])
    threads = torch.get_num_threads()
    found = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(segment_reduce(x, offsets))
    torch.set_num_threads(threads)

    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@each("form", [segment_reduce, segment_reduce.__wrapped__])
def test_offsets_of_another_dtype_are_refused(form) -> None:
    with pytest.raises(RuntimeError, match="'offsets' must be int64 of shape"):
        form(torch.ones(3, 2), torch.tensor([0, 3], dtype=torch.int32), "sum")


@each(
    ("x", "offsets"), [(torch.ones(3, 2), torch.ones(0, dtype=torch.int64)), (torch.tensor(1.0), torch.tensor([0, 1]))]
)
def test_what_has_no_segments_or_rows_is_refused_in_a_graph(x: Tensor, offsets: Tensor) -> None:
    with pytest.raises(RuntimeError, match="gallery::segment_reduce: 'offsets' must be int64 of shape"):
        segments.segment_reduce_fake(x, offsets, "sum")
