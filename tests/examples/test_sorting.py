"""sort and top_k by value: against torch.sort(stable=True), in every dtype and layout; derivatives; bad arguments."""

from functools import partial

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import assert_derivatives, dtypes, dtypes_in_layouts, load, needs_compiler, random

sorting = load("sorting")
sort, top_k = sorting.sort, sorting.top_k

directions = each("falling", [False, True])
# Below and above the length from which radix is used, and about one block of the selection.
sizes = each("size", [0, 1, 2, 63, 65, 700, 1500])


def numbers(size: int, dtype: torch.dtype) -> Tensor:
    """Rows with ties, both zeros, both infinities and NaN of either sign, as far as there is room."""
    x = random(3, size, dtype=dtype)
    x[1] = x[1].round()
    for place, value in enumerate([-0.0, 0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, torch.nan]):
        x[:, 2 + place : 3 + place] = value
    return x


def bits(x: Tensor) -> Tensor:
    """As integers, of which NaN and both zeros are comparable."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize])


@needs_compiler
@dtypes_in_layouts
@directions
@sizes
def test_sort(size, falling, layout, dtype) -> None:
    x = layout(numbers(size, dtype))
    with sort.use_kernel("cpp"):
        values, indices = sort(x, falling)
    expected = torch.sort(x, stable=True, descending=falling)

    assert torch.equal(expected.indices, indices)
    assert torch.equal(bits(expected.values), bits(values))
    assert values.is_contiguous()


@needs_compiler
@dtypes
@directions
@sizes
def test_top_k(size, falling, dtype) -> None:
    x = numbers(size, dtype)
    expected = torch.sort(x, stable=True, descending=falling)
    for k in {0, min(size, 1), min(size, 5), size // 2, size}:
        with top_k.use_kernel("cpp"):
            values, indices = top_k(x, k, falling)

        assert torch.equal(expected.indices[:, :k], indices)
        assert torch.equal(bits(expected.values[:, :k]), bits(values))


@needs_compiler
@each("rising", [False, True])
def test_top_k_where_every_number_is_a_new_best(rising) -> None:
    """The worst case of the selection: it is pruned again and again."""
    x = torch.arange(5000.0) if rising else -torch.arange(5000.0)

    assert torch.equal(torch.topk(x, 100).indices, top_k(x, 100)[1])


def test_integers_run_in_the_default_kernel() -> None:
    x = torch.tensor([[3, 1, 2, 1]])

    assert [[1, 3, 2, 0]] == sort(x)[1].tolist()
    assert [[3, 2]] == top_k(x, 2)[0].tolist()


DERIVATIVES = {
    "sort": (lambda x: sort(x)[0], lambda x: torch.sort(x).values),
    "sort_falling": (lambda x: sort(x, True)[0], lambda x: torch.sort(x, descending=True).values),
    "top_k": (lambda x: top_k(x, 3)[0], lambda x: torch.topk(x, 3).values),
    "bottom_k": (lambda x: top_k(x, 2, largest=False)[0], lambda x: torch.topk(x, 2, largest=False).values),
}
functions = each(("op", "built_in"), DERIVATIVES.values())


@functions
def test_derivatives(op, built_in) -> None:
    """Of a scalar that depends on the order."""

    def cubes(function, x: Tensor) -> Tensor:
        values = function(x)
        return values.pow(3) * torch.arange(1.0, 1 + values.shape[-1], dtype=x.dtype)

    assert_derivatives(partial(cubes, op), partial(cubes, built_in), random(2, 5, dtype=torch.float64))


@functions
@each("dim", [0, 1, -1])
def test_vmap(op, built_in, dim) -> None:
    x = random(4, 6, 5, dtype=torch.float64)

    assert torch.equal(torch.vmap(built_in, dim)(x), torch.vmap(op, dim)(x))


@each("k", [-1, 4, 2**40])
def test_k_out_of_range(k) -> None:
    with pytest.raises(RuntimeError, match=rf"'k' must be from 0 to 3, the size of the last dimension, found {k}"):
        top_k(torch.ones(2, 3), k)


def by_kernel(name: str, op, x: Tensor):
    with sort.use_kernel(name), top_k.use_kernel(name):
        return op(x)


NUMBER = torch.tensor(1.0)
CALLS = {
    "default kernel": lambda op: by_kernel("default", op, NUMBER),
    "samples of a batch": lambda op: torch.vmap(op)(torch.tensor([3.0, 1.0, 2.0])),
    "graph": lambda op: torch.compile(op, fullgraph=True, backend="aot_eager")(NUMBER),
}
CPP = pytest.param(lambda op: by_kernel("cpp", op, NUMBER), marks=needs_compiler, id="cpp")


@each("op", [sort, partial(top_k, k=1)])
@pytest.mark.parametrize("call", [*(pytest.param(call, id=name) for name, call in CALLS.items()), CPP])
def test_a_number_has_no_dimension_to_sort(op, call) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"'x' must be \(\*b n\)"):
        call(op)
