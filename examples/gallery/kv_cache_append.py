"""Appends the keys and values of new tokens to a cache, each sequence of the batch at its own position, in place.

    key_cache[b, :, start_b : start_b + tokens] = keys[b],    start_b = position + positions[b];    values likewise

Positions are 0 unless given. Keys and values may differ in heads and features.
Dtypes: any of 1, 2, 4 or 8 bytes, that of a cache for what is appended to it; positions int64. Nothing is computed.
The caches share memory neither with each other nor with the keys and values.
For inference: no gradient passes, neither to the cache nor to the keys and values.
A position out of bounds raises on the CPU. A GPU's host does not wait to look: NaN (for integers 0) is written as near
as it fits, so that it shows in the attention of that sequence, and no other memory is touched.
Source: Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention", vLLM's reshape_and_cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from memory_overlap import are_apart
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, tl, triton_kernel

CACHES = ("key_cache", "value_cache")


def check(key_cache: Tensor, value_cache: Tensor, keys: Tensor, values: Tensor, positions: Tensor | None) -> None:
    """Raises where there are more tokens than places, or dtypes do not fit together."""
    for name, cache, fresh in (("key", key_cache, keys), ("value", value_cache, values)):
        if fresh.shape[2] > cache.shape[2] or cache.dtype != fresh.dtype:
            found = f"{tuple(cache.shape)} {cache.dtype} and {tuple(fresh.shape)} {fresh.dtype}"
            raise ValueError(f"gallery::kv_cache_append: '{name}s' do not fit '{name}_cache': found {found}")
    if positions is not None and positions.dtype != torch.int64:
        raise ValueError(f"gallery::kv_cache_append: expected int64 'positions'; found {positions.dtype}")


def check_apart(key_cache: Tensor, value_cache: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raises where what is written lies in the memory of another tensor."""
    caches = {"key_cache": key_cache, "value_cache": value_cache}
    for name, tensor in {"keys": keys, "values": values, "value_cache": value_cache}.items():
        for cache_name, cache in caches.items():
            if name != cache_name and not are_apart(tensor, cache):
                raise RuntimeError(f"gallery::kv_cache_append: '{name}' lies within '{cache_name}': clone it")


def starts(keys: Tensor, positions: Tensor | None, position: int) -> Tensor:
    """Where each sequence of the batch begins."""
    if positions is None:
        return torch.full(keys.shape[:1], position, dtype=torch.int64, device=keys.device)
    return positions + position if position else positions.contiguous()


@custom_op(
    "gallery::kv_cache_append",
    mutates_args=CACHES,
    non_differentiable=(*CACHES, "keys", "values"),
    reference=True,
    shapes="key_cache: b h [l] d, value_cache: b j [l] e, keys: b h [t] d, values: b j [t] e, positions?: b ->",
)
def kv_cache_append(
    key_cache: Tensor,
    value_cache: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor | None = None,
    position: int = 0,
) -> None:
    """Writes keys and values of new tokens into their caches."""
    check(key_cache, value_cache, keys, values, positions)
    check_apart(key_cache, value_cache, keys, values)
    place = starts(keys, positions, position).unsqueeze(1) + torch.arange(keys.shape[2], device=keys.device)
    # gather refuses what is out of bounds, also what indexing would count from the end.
    place = torch.arange(key_cache.shape[2], device=keys.device).expand(keys.shape[0], -1).gather(1, place)
    for cache, fresh in ((key_cache, keys), (value_cache, values)):
        cache.scatter_(2, place[:, None, :, None].expand(fresh.shape), fresh)


append_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "kv_cache_append", fallback=kv_cache_append.__wrapped__)


@kv_cache_append.register_kernel("cpu", name="cpp")
def kv_cache_append_cpu(key_cache, value_cache, keys, values, positions, position) -> None:
    """C++: one copy of memory per sequence and head where the layouts allow it; any strides."""
    check(key_cache, value_cache, keys, values, positions)
    append_cpp(key_cache, value_cache, keys, values, starts(keys, positions, position))


@triton_kernel
def append_row(
    cache, fresh, first, filler, heads, tokens, length, features,
    cache_batch, cache_head, cache_row, fresh_batch, fresh_head, fresh_row, block: tl.constexpr,
) -> None:  # fmt: skip
    """Copies one token of one head of one sequence; the last dimension has stride 1."""
    row = tl.program_id(0).to(tl.int64)  # strides times indices may pass 2^31
    batch, head, token = row // (heads * tokens), row // tokens % heads, row % tokens
    start = tl.load(first + batch)
    nearest = tl.minimum(tl.maximum(start, 0), length - tokens)
    place = tl.arange(0, block)
    inside = place < features
    values = tl.load(fresh + batch * fresh_batch + head * fresh_head + token * fresh_row + place, mask=inside)
    values = tl.where(start == nearest, values, tl.load(filler))
    target = batch * cache_batch + head * cache_head + (nearest + token) * cache_row
    tl.store(cache + target + place, values, mask=inside)


@kv_cache_append.register_kernel(
    "cuda", name="triton", layouts=dict.fromkeys((*CACHES, "keys", "values"), "contiguous_rows")
)
def kv_cache_append_cuda(key_cache, value_cache, keys, values, positions, position) -> None:
    """Triton: one program per token and head; neither the host nor a copy of the keys is waited for."""
    check(key_cache, value_cache, keys, values, positions)
    check_apart(key_cache, value_cache, keys, values)
    first = starts(keys, positions, position)
    for cache, fresh in ((key_cache, keys), (value_cache, values)):
        _, heads, tokens, features = fresh.shape
        if not fresh.numel():  # a grid of size 0 is an error
            continue
        filler = torch.full((), torch.nan if fresh.is_floating_point() else 0, dtype=fresh.dtype, device=fresh.device)
        append_row[(fresh.numel() // features,)](
            cache, fresh, first, filler, heads, tokens, cache.shape[2], features,
            *cache.stride()[:3], *fresh.stride()[:3], block=1 << max(0, features - 1).bit_length(),
        )  # fmt: skip


@kv_cache_append.register_fake
def _(key_cache, value_cache, keys, values, positions, position):
    check(key_cache, value_cache, keys, values, positions)  # traces have no memory that could be shared


@kv_cache_append.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    integers = partial(torch.tensor, dtype=torch.int64, device=make(1).device)
    cache = partial(make, 2, 3, 5)
    yield Sample(cache(4), cache(7), make(2, 3, 2, 4), make(2, 3, 2, 7), integers([3, 0]))  # up to the last place
    yield Sample(cache(4), cache(4), make(2, 3, 1, 4), make(2, 3, 1, 4), position=4)
    yield Sample(make(2, 0, 5, 4), cache(4), make(2, 0, 1, 4), make(2, 3, 1, 4), position=1)  # keys without heads
    late = Sample(cache(4), cache(4), make(2, 3, 2, 4), make(2, 3, 2, 4), integers([0, 4]))
    text = "row 1 of the batch: 2 tokens from position 4 do not fit a cache of length 5"
    yield late.raises(RuntimeError, match=text, on="cpu")
    wrong = Sample(cache(4), cache(4), make(2, 3, 2, 3), make(2, 3, 2, 4))
    yield wrong.raises(ValueError, match="'keys' must be .b h t d. with d = 4")


if __name__ == "__main__":
    kv_cache_append.check()
