"""grouped_mm and grouped_mm_list, by value, against one product per group in float64."""

from itertools import pairwise

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

grouped, listed = load("grouped_mm"), load("grouped_mm_list")
# rows, depth, columns, ends: an empty group and rows of none; whole tiles and rests; one of everything; nothing.
CASES = {
    "rest": (15, 17, 133, [7, 7, 13]),
    "tile": (12, 4, 64, [6, 12]),
    "one": (1, 1, 1, [1]),
    "no rows": (0, 3, 4, [0, 0]),
    "no depth": (3, 0, 4, [3]),
    "no columns": (3, 2, 0, [1, 3]),
    "no groups": (3, 2, 4, []),
}
cases = each("case", CASES)


def arguments(case: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    rows, depth, columns, ends = CASES[case]
    a, b = random(rows, depth, dtype=dtype), random(len(ends), depth, columns, dtype=dtype, seed=1)
    return a, b, torch.tensor(ends, dtype=torch.int64)


def exact(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """Row by row."""
    ends = [0, *offsets.tolist()]
    out = a.new_zeros(a.shape[0], b.shape[2])
    for group, matrix in enumerate(b):
        for row in range(ends[group], ends[group + 1]):
            out = out.index_add(0, torch.tensor([row]), (a[row] @ matrix).unsqueeze(0))
    return out


@needs_compiler
@dtypes_in_layouts
@cases
def test_products(case: str, layout, dtype: torch.dtype) -> None:
    a, b, offsets = arguments(case, dtype)
    a, b = layout(a), layout(b) if b.numel() else b
    with grouped.grouped_mm.use_kernel("cpp"):
        found = grouped.grouped_mm(a, b, offsets)

    assert found.is_contiguous()
    assert_near(found, exact(a.double(), b.double(), offsets), dtype, 8 * BUDGETS[dtype])


@needs_compiler
@dtypes
@cases
def test_outer_products(case: str, dtype: torch.dtype) -> None:
    a, b, offsets = arguments(case, dtype)
    g = random(a.shape[0], b.shape[2], dtype=dtype, seed=2)
    expected = torch.zeros(b.shape, dtype=torch.float64)
    for group, (start, end) in enumerate(pairwise([0, *offsets.tolist()])):
        expected[group] = torch.einsum("ri,rj->ij", a[start:end].double(), g[start:end].double())

    with grouped.grouped_outer.use_kernel("cpp"):
        assert_near(grouped.grouped_outer(a, g, offsets), expected, dtype, 8 * BUDGETS[dtype])


@each("kernel", ["default", "loop"])
def test_autocast_casts_what_products_do(kernel: str) -> None:
    a, _, offsets = arguments("tile", torch.float32)
    g = random(a.shape[0], 5, dtype=torch.float32, seed=2)
    torch.compiler.reset()
    compiled = torch.compile(grouped.grouped_outer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16), grouped.grouped_outer.use_kernel(kernel):
        found = [call(a, g, offsets) for call in (grouped.grouped_outer, compiled)]

    groups = [(left.bfloat16().double(), right.bfloat16().double()) for left, right in ((a[:6], g[:6]), (a[6:], g[6:]))]
    expected = torch.stack([left.T @ right for left, right in groups])
    assert [torch.bfloat16] * 2 == [result.dtype for result in found]
    for result in found:
        assert_near(result, expected, torch.bfloat16, 2**-7)


def test_derivatives() -> None:
    a, b, offsets = random(4, 2, dtype=torch.float64), random(2, 2, 3, dtype=torch.float64), torch.tensor([1, 3])

    assert_derivatives(lambda a, b: grouped.grouped_mm(a, b, offsets), lambda a, b: exact(a, b, offsets), a, b)


@cases
def test_loops_of_products(case: str) -> None:
    """What a GPU runs, and what runs without a compiler."""
    a, b, offsets = arguments(case, torch.float64)
    g = random(a.shape[0], b.shape[2], dtype=torch.float64, seed=2)

    torch.testing.assert_close(grouped.products(a, b, offsets), exact(a, b, offsets))
    torch.testing.assert_close(grouped.outer_products(a, g, offsets), grouped.grouped_outer.__wrapped__(a, g, offsets))


# PyTorch's own has no float64. On a CPU it differs by its speed, and by the rows that it leaves undefined.
BUILT_IN = each("dtype", [torch.float32, torch.bfloat16, torch.float16])


def aligned_arguments(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of whole 16 bytes, an empty group, and more undefined elements than a program zeroes."""
    a, b = random(2100, 16, dtype=dtype), random(3, 16, 24, dtype=dtype, seed=1)
    return a, b, torch.tensor([5, 5, 18])


@interpreted
@BUILT_IN
@each("is_transposed", [False, True])
def test_the_built_in_products(is_transposed, dtype):
    a, b, offsets = aligned_arguments(dtype)
    b = b.mT.contiguous().mT if is_transposed else b
    assert grouped.is_built_in(a, b, offsets)
    found = grouped.built_in_products(a, b, offsets)

    assert found.is_contiguous()
    assert_near(found, exact(a.double(), b.double(), offsets), dtype, 8 * BUDGETS[dtype])


@interpreted
@BUILT_IN
def test_the_built_in_outer_products(dtype):
    a, b, offsets = aligned_arguments(dtype)
    g = random(a.shape[0], b.shape[2], dtype=dtype, seed=2)
    assert grouped.is_built_in(a, g, offsets)
    found = grouped.built_in_outer_products(a, g, offsets)

    assert found.is_contiguous()
    expected = grouped.grouped_outer.__wrapped__(a.double(), g.double(), offsets)
    assert_near(found, expected, dtype, 8 * BUDGETS[dtype])


@interpreted
def test_the_built_in_products_of_tensors_that_lie_anywhere():
    """Not from a multiple of 16 bytes on, with gaps, and one row with any stride."""
    a, b, offsets = aligned_arguments(torch.float32)
    shifted = torch.empty(b.numel() + 1)[1:].view(b.shape).copy_(b)
    apart = torch.empty(3, 16, 25)[..., 1:].copy_(b)
    for given in (shifted, apart):
        found = grouped.built_in_products(a, given, offsets)
        torch.testing.assert_close(found, exact(a, b, offsets))
    row = torch.rand(16).as_strided((1, 16), (1, 1))
    torch.testing.assert_close(grouped.built_in_products(row, b[:1], torch.tensor([1])), row @ b[0])


@interpreted
@each("ends", [[7, 2, 9], [0, 4, 2**40], [-1, 3, 3]])
def test_the_built_in_products_keep_wrong_offsets_within_the_rows(ends):
    """A GPU that reads them reports no error, so the result is that of offsets that ascend."""
    a, b, _ = aligned_arguments(torch.float32)
    a = a[:10]
    ascending = torch.tensor(ends).clamp(0, 10).cummax(0).values

    found = grouped.built_in_products(a, b, torch.tensor(ends))
    torch.testing.assert_close(found, exact(a, b, ascending))
    found = grouped.built_in_outer_products(a, a, torch.tensor(ends))
    torch.testing.assert_close(found, grouped.grouped_outer.__wrapped__(a, a, ascending))


def test_what_the_built_in_products_do_not_take():
    a, b, offsets = aligned_arguments(torch.bfloat16)
    assert not grouped.is_built_in(a[:, :4], b[:, :4], offsets)
    assert not grouped.is_built_in(a, b[..., :4], offsets)
    assert not grouped.is_built_in(a[:0], b, offsets)
    assert not grouped.is_built_in(a.double(), b.double(), offsets)
    assert not grouped.is_built_in(a, b.float(), offsets)
    assert not grouped.is_built_in(a, b[:0], offsets[:0])
    assert not grouped.is_built_in(a, b, offsets.double())


@needs_compiler
@each("ends", [[2, 1], [0, 4], [-1, 3], [2**40, 2**40]])
@each("kernel", [grouped.grouped_mm_cpu, grouped.products])
def test_offsets_that_are_no_offsets(kernel, ends: list[int]) -> None:
    """They become addresses, so they are looked at first."""
    with pytest.raises(RuntimeError, match="'offsets' must ascend from 0 to at most 3, the rows of 'a'"):
        kernel(torch.ones(3, 2), torch.ones(2, 2, 5), torch.tensor(ends))


@each("b", [torch.ones(2, 3, 5), torch.ones(3, 2, 5), torch.ones(2, 2, 5).double(), torch.ones(2, 5)])
def test_arguments_that_do_not_fit(b: Tensor) -> None:
    with pytest.raises(ValueError, match=r"'(b|offsets)' must be \(|expected 'a' \(rows, depth\), 'b'"):
        grouped.grouped_mm(torch.ones(3, 2), b, torch.tensor([1, 3]))


@each("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_offsets_of_every_integer_dtype(dtype: torch.dtype) -> None:
    """In every kernel, with gradients, compiled."""
    a, b, offsets = torch.rand(6, 3).requires_grad_(), torch.rand(2, 3, 4), torch.tensor([2, 5])
    given, expected = offsets.to(dtype), exact(a, b, offsets)

    for function in (grouped.grouped_mm, grouped.products, grouped.grouped_mm.__wrapped__):
        torch.testing.assert_close(function(a, b, given), expected)
    compiled = torch.compile(grouped.grouped_mm, backend="aot_eager", fullgraph=True)(a, b, given)
    torch.testing.assert_close(compiled, expected)
    (found,) = torch.autograd.grad(compiled.square().sum(), a)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), a)[0])


@each("device", ["cpu", "meta"])
def test_offsets_that_are_not_integers_are_refused(device: str) -> None:
    a, b, offsets = (torch.ones(*shape, device=device) for shape in ((3, 2), (1, 2, 5), (1,)))
    with pytest.raises(ValueError, match=r"'offsets' \(groups,\), integers; found .* torch\.float32"):
        grouped.grouped_mm(a, b, offsets)


def pairs() -> tuple[list[Tensor], list[Tensor]]:
    """Groups of every size, one without rows and one without depth."""
    shapes = ((2, 3, 4), (0, 4, 2), (5, 1, 3), (2, 0, 2))
    a = [random(rows, depth, dtype=torch.float64) for rows, depth, _ in shapes]
    return a, [random(depth, columns, dtype=torch.float64, seed=1) for _, depth, columns in shapes]


def total(products: list[Tensor]) -> Tensor:
    return sum(product.square().sum() for product in products)


@each("backend", [None, "aot_eager"])
def test_lists(backend: str | None) -> None:
    a, b = pairs()
    run = listed.grouped_mm_list
    if backend is not None:
        run = torch.compile(run, fullgraph=True, backend=backend)

    torch.testing.assert_close(run(a, b), [torch.einsum("ij,jk->ik", *pair) for pair in zip(a, b, strict=True)])


def test_gradients_of_some_elements_of_lists() -> None:
    a, b = pairs()
    leaves = [a[0].requires_grad_(), b[2].requires_grad_()]
    found = torch.autograd.grad(total(listed.grouped_mm_list(a, b)), leaves)

    expected = total([left @ right for left, right in zip(a, b, strict=True)])
    torch.testing.assert_close(found, torch.autograd.grad(expected, leaves))


def test_a_pair_without_a_product() -> None:
    with pytest.raises(ValueError, match=r"'b' must be \(d c\) with d = 3"):
        listed.grouped_mm_list([torch.ones(1, 1), torch.ones(2, 3)], [torch.ones(1, 1), torch.ones(2, 3)])


@each("ends", [[2, 1], [0, 4], [-1, 3], [2, -1]])
def test_offsets_that_are_no_offsets_in_a_batch(ends: list[int]) -> None:
    """The reference, which is mapped, raises for an index out of bounds; then the calls are made one by one."""
    a, b, offsets = torch.ones(2, 3, 2), torch.ones(2, 2, 2, 5), torch.tensor([[1, 3], ends])
    with pytest.raises(RuntimeError, match="'offsets' must ascend from 0 to at most 3, the rows of 'a'"):
        torch.vmap(grouped.grouped_mm)(a, b, offsets)
