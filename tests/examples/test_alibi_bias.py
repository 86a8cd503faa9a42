"""alibi_bias, by value, against the paper's formula, element by element."""

import math
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from gallery_values import BUDGETS, dtypes, interpreted, load, needs_compiler, random

alibi = load("alibi_bias")
SIZES = [(8, 5), (3, 2), (12, 19), (1, 1), (0, 4), (2, 0), (1, 70)]
KERNELS = [
    pytest.param(partial(alibi.alibi_bias_cpu, device=None), marks=needs_compiler, id="cpp"),
    pytest.param(alibi.alibi_bias.__wrapped__, id="reference"),
]


def slope(heads: int, head: int) -> float:
    """Press et al. 2022, section 3; for other than powers of two as in the authors' get_slopes."""
    power = 2 ** math.floor(math.log2(heads))
    return 2 ** (-8 * (head + 1) / power) if head < power else 2 ** (-4 * (2 * (head - power) + 1) / power)


@pytest.mark.parametrize("kernel", KERNELS)
@each(("heads", "length"), SIZES)
@dtypes
def test_values(kernel, heads: int, length: int, dtype: torch.dtype) -> None:
    assert_values(kernel(heads, length, dtype=dtype), dtype, 1)


@interpreted
@each(("heads", "length"), SIZES)
@dtypes
def test_triton_kernel_interpreted(heads: int, length: int, dtype: torch.dtype) -> None:
    """Triton's interpreter truncates bfloat16: hence two roundings."""
    assert_values(alibi.alibi_bias_cuda(heads, length, dtype=dtype, device=None), dtype, 2)


@cache
def formula(heads: int, length: int) -> Tensor:
    """The bias in float64."""
    expected = torch.full((heads, length, length), -torch.inf, dtype=torch.float64)
    for head in range(heads):
        for query in range(length):
            for key in range(query + 1):
                expected[head, query, key] = -slope(heads, head) * (query - key)
    return expected


def assert_values(found: Tensor, dtype: torch.dtype, roundings: int) -> None:
    """Against the formula, element by element."""
    heads, length, _ = found.shape

    assert dtype == found.dtype
    torch.testing.assert_close(found.double(), formula(heads, length), rtol=roundings * BUDGETS[dtype], atol=0)


def test_the_device_is_chosen_by_argument() -> None:
    """Fake tensors for the device meta: nothing is computed there."""
    devices = [alibi.alibi_bias(2, 3, device=torch.device(name)).device.type for name in ("cpu", "meta")]

    assert ["cpu", "meta"] == devices


def test_compiled() -> None:
    """No tensor goes in, one comes out."""
    q, k, v = (random(1, 2, 5, 4, dtype=torch.float32, seed=seed) for seed in (0, 1, 2))

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=alibi.alibi_bias(2, q.shape[2]))

    torch.compiler.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")

    torch.testing.assert_close(compiled(q, k, v), attention(q, k, v))


@each(
    ("arguments", "message"),
    [
        ({"heads": -1, "length": 2}, "must be at least 0; found -1 and 2"),
        ({"heads": 2, "length": 2, "dtype": torch.int64}, "'dtype' must be one of .*; found torch.int64"),
        ({"heads": 2, "length": 2, "dtype": torch.float8_e5m2}, "'dtype' must be one of .*; found torch.float8_e5m2"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alibi.alibi_bias(**arguments)


@each("form", [alibi.alibi_bias, alibi.alibi_bias.__wrapped__])
def test_no_length_needs_no_slopes(form) -> None:
    """Of 2^33 heads the slopes alone would be 64 GB."""
    assert (2**33, 0, 0) == form(2**33, 0).shape
