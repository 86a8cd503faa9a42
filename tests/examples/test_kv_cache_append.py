"""kv_cache_append, by value, against assignment to slices."""

from collections.abc import Callable

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import interpreted, load, needs_compiler, random, strided, transposed

kv = load("kv_cache_append")
# batch, heads, length, features of keys, tokens, positions
CASES = {
    "decode": (3, 2, 5, 4, 1, [4, 0, 2]),
    "prefill": (2, 3, 6, 7, 4, [0, 2]),
    "full": (1, 1, 3, 1, 3, [0]),
    "no tokens": (2, 1, 3, 4, 0, [3, 1]),
    "no sequences": (0, 2, 3, 4, 1, []),
    "no features": (2, 2, 3, 0, 1, [0, 1]),
}
cases = each("case", CASES)
# One for each size of an element.
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int8]
KERNELS = [
    pytest.param(kv.kv_cache_append_cpu, marks=needs_compiler, id="cpp"),
    pytest.param(kv.kv_cache_append.__wrapped__, id="reference"),
]
KERNEL_NAMES = [pytest.param("cpp", marks=needs_compiler), "default"]


def arguments(case: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    batch, heads, length, features, tokens, positions = CASES[case]
    caches = (random(batch, heads, length, features + extra, dtype=torch.float64, seed=extra) for extra in (0, 1))
    fresh = (random(batch, heads, tokens, features + extra, dtype=torch.float64, seed=2 + extra) for extra in (0, 1))
    tensors = [(8 * tensor).to(dtype) for tensor in (*caches, *fresh)]
    return *tensors, torch.tensor(positions, dtype=torch.int64)


def heads_inside(tensor: Tensor) -> Tensor:
    """The same values, in memory as (batch, length, heads, features)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def expected(cache: Tensor, fresh: Tensor, positions: Tensor) -> Tensor:
    result = cache.clone()
    for sequence, start in enumerate(positions.tolist()):
        result[sequence, :, start : start + fresh.shape[2]] = fresh[sequence]
    return result


@each("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
@cases
def test_writes_each_sequence_at_its_position(case: str, kernel: Callable[..., None], dtype: torch.dtype) -> None:
    """And nothing else."""
    assert_writes(kernel, case, dtype)


@interpreted
@each("dtype", DTYPES)
@cases
def test_triton_kernel_interpreted(case: str, dtype: torch.dtype) -> None:
    """The CUDA kernel on CPU tensors."""
    assert_writes(kv.kv_cache_append_cuda, case, dtype)


def assert_writes(kernel: Callable[..., None], case: str, dtype: torch.dtype) -> None:
    keys_cache, values_cache, keys, values, positions = arguments(case, dtype)
    wanted = [expected(keys_cache, keys, positions), expected(values_cache, values, positions)]
    kernel(keys_cache, values_cache, keys, values, positions, 0)

    torch.testing.assert_close([keys_cache, values_cache], wanted, rtol=0, atol=0)


@needs_compiler
@each("layout", [transposed, strided, heads_inside])
@each("of", ["cache", "keys"])
def test_layouts(of: str, layout: Callable[[Tensor], Tensor]) -> None:
    cache, _, keys, _, positions = arguments("prefill", torch.float32)
    wanted = expected(cache, keys, positions)
    cache, keys = (layout(cache), keys) if of == "cache" else (cache, layout(keys))
    kv.kv_cache_append(cache, cache.clone(), keys, keys, positions)

    torch.testing.assert_close(cache, wanted, rtol=0, atol=0)


@needs_compiler
@each("positions", [None, torch.tensor([0, 1])])
def test_a_position_for_all_is_added(positions: Tensor | None) -> None:
    cache, other, keys, values, _ = arguments("prefill", torch.float32)
    wanted = expected(cache, keys, torch.tensor([1, 1]) + (0 if positions is None else positions))
    kv.kv_cache_append(cache, other, keys, values, positions, position=1)

    torch.testing.assert_close(cache, wanted, rtol=0, atol=0)


@needs_compiler
@each("start", [-1, 3, 2**62])
def test_out_of_bounds_writes_nothing(start: int) -> None:
    """Also of the sequences before it."""
    cache, other, keys, values, _ = arguments("prefill", torch.float32)
    before = cache.clone()
    with pytest.raises(RuntimeError, match=f"row 1 of the batch: 4 tokens from position {start} do not fit a cache of"):
        kv.kv_cache_append(cache, other, keys, values, torch.tensor([0, start]))

    assert torch.equal(before, cache)


@interpreted
@each("start", [-1, 3, 2**62])
def test_out_of_bounds_on_a_gpu_shows_in_that_sequence_only(start: int) -> None:
    cache, other, keys, values, _ = arguments("prefill", torch.float32)
    wanted = expected(cache, keys, torch.tensor([0, 0 if start < 0 else 2]))
    kv.kv_cache_append_cuda(cache, other, keys, values, torch.tensor([0, start]), 0)

    assert torch.equal(wanted[0], cache[0])
    assert 3 * 4 * 7 == cache[1].isnan().sum()


@needs_compiler
def test_compiled() -> None:
    cache, other, keys, values, positions = arguments("decode", torch.float32)
    wanted = expected(cache, keys, positions)
    torch.compiler.reset()
    torch.compile(kv.kv_cache_append, fullgraph=True, backend="aot_eager")(cache, other, keys, values, positions)

    torch.testing.assert_close(cache, wanted, rtol=0, atol=0)


@needs_compiler
def test_a_cache_that_shares_memory_is_refused() -> None:
    cache = torch.zeros(1, 1, 3, 2).expand(2, 1, 3, 2)
    with pytest.raises(RuntimeError, match="'key_cache' is expanded"):
        kv.kv_cache_append(cache, torch.zeros(2, 1, 3, 2), torch.ones(2, 1, 1, 2), torch.ones(2, 1, 1, 2))


def sharing(name: str, other: str) -> dict[str, Tensor]:
    """Arguments of which two share memory."""
    caches, fresh = (2, 1, 3, 2), (2, 1, 1, 2)
    shapes = {"key_cache": caches, "value_cache": caches, "keys": fresh, "values": fresh}
    tensors = {key: torch.zeros(shape) for key, shape in shapes.items()}
    return tensors | {name: tensors[other][:, :, : shapes[name][2]]}


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@each(
    ("name", "other"),
    [(name, other) for name in ("keys", "values") for other in kv.CACHES] + [("value_cache", "key_cache")],
)
def test_what_lies_within_a_cache_is_refused(name: str, other: str, kernel: str) -> None:
    with kv.kv_cache_append.use_kernel(kernel), pytest.raises(RuntimeError, match=f"'{name}' lies within '{other}'"):
        kv.kv_cache_append(**sharing(name, other), position=1)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@each("dim", [1, 2, 3, 4])
def test_caches_that_interleave_are_written(dim: int, kernel: str) -> None:
    """Both are halves of one table, as are keys and values; no element is in both."""
    sizes, fresh_sizes = [2, 3, 4, 5], [2, 3, 1, 5]
    table = torch.zeros(*sizes[:dim], 2, *sizes[dim:])
    fresh = random(*fresh_sizes[:dim], 2, *fresh_sizes[dim:], dtype=torch.float32)
    halves = zip(table.unbind(dim), fresh.unbind(dim), strict=True)
    wanted = [expected(part, new, torch.tensor([1, 1])) for part, new in halves]
    with kv.kv_cache_append.use_kernel(kernel):
        kv.kv_cache_append(*table.unbind(dim), *fresh.unbind(dim), position=1)

    assert torch.equal(torch.stack(wanted, dim), table)


@each(
    ("changed", "message"),
    [
        ({2: torch.ones(2, 3, 7, 7)}, r"'values' must be \(b j t e\) with t = 7"),
        ({2: torch.ones(2, 3, 4, 7).double()}, "'keys' do not fit 'key_cache'"),
        ({3: torch.ones(2, 2, 4, 8)}, r"'values' must be \(b j t e\) with j = 3"),
        ({3: torch.ones(2, 3, 3, 8)}, r"'values' must be \(b j t e\) with t = 4"),
        ({4: torch.tensor([1])}, r"'positions' must be \(b\) with b = 2"),
    ],
)
def test_arguments_that_do_not_fit(changed: dict[int, Tensor], message: str) -> None:
    tensors = dict(enumerate(arguments("prefill", torch.float32))) | changed
    with pytest.raises(ValueError, match=message):
        kv.kv_cache_append(*tensors.values())
