"""Dropout with a seed: the mask is a function of the seed and of the element's place, so it is never saved.

    out_i = x_i / (1 - p) where word_i ≥ p · 2³², else 0        word_i: 32 bits of Philox4x32-10, keyed with the seed

The backward draws the mask again, and so does checkpointing, whatever generators were drawn from in between.
Groups: elements in their logical order, 512 by 512; element i of a group is word i // 128 of its counter i % 128.
offset is the place of the first element of x, where x is a part of a larger tensor, such as the rows of one rank.
seed: one element, on the device of x, so that CUDA graphs and compiled code see each new value.
Dtypes: x float64, float32, bfloat16, float16; seed int64, such as torch.randint(2**62, ()).
Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Srivastava et al. 2014, "Dropout".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from launch_choices import ELEMENTWISE, launch_of
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, tl, triton_kernel

LANES = 128  # counters of a group; each gives four words
WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85


def philox(seed: Tensor, counters: int, first: int = 0) -> Tensor:
    """The words of counters from the first on: (4, counters), int64. An int64 product wraps: its halves are exact."""
    counter = torch.arange(first, first + counters, device=seed.device)
    key0, key1 = seed.reshape(()) & WORD, seed.reshape(()) >> 32 & WORD
    a, b, c, d = counter & WORD, counter >> 32, torch.zeros_like(counter), torch.zeros_like(counter)
    for _ in range(10):
        first, second = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (second >> 32 & WORD) ^ b ^ key0, second & WORD, (first >> 32 & WORD) ^ d ^ key1, first & WORD
        key0, key1 = key0 + WEYL[0] & WORD, key1 + WEYL[1] & WORD
    return torch.stack((a, b, c, d))


def threshold_and_scale(p: float) -> tuple[int, float]:
    """The least word that keeps its element, and what a kept element is multiplied by."""
    return round(p * 2**32), 0.0 if p == 1 else 1 / (1 - p)


def require_arguments(x: Tensor, p: float, seed: Tensor, offset: int) -> None:
    """Raises where an argument is not what the op takes; no value of a tensor is looked at."""
    if not 0 <= p <= 1:
        raise ValueError(f"gallery::dropout: 'p' must be a probability in [0, 1], not {p}")
    if offset < 0:
        raise ValueError(f"gallery::dropout: 'offset' must be the place of an element, not {offset}")
    if not x.is_floating_point():
        raise TypeError(f"gallery::dropout: 'x' must have a floating-point dtype, not {x.dtype}")
    if seed.numel() != 1 or seed.dtype != torch.int64:
        found = f"{tuple(seed.shape)}, {seed.dtype}"
        raise ValueError(f"gallery::dropout: 'seed' must be one int64: torch.randint(2**62, ()); found {found}")


@custom_op("gallery::dropout", outputs=("out",), reference=True)
def dropout(x: Tensor, p: float, seed: Tensor, offset: int = 0) -> Tensor:
    """Keeps each element with probability 1 - p, scaled by 1 / (1 - p), and zeroes the others."""
    require_arguments(x, p, seed, offset)
    threshold, scale = threshold_and_scale(p)
    first, start = divmod(offset, 4 * LANES)
    groups = -(-(start + x.numel()) // (4 * LANES))
    words = philox(seed, groups * LANES, first * LANES).view(4, groups, LANES).transpose(0, 1).reshape(-1)
    kept = (words[start : start + x.numel()] >= threshold).view(x.shape)
    wide = x.contiguous().to(torch.promote_types(x.dtype, torch.float32))
    return torch.where(kept, wide * scale, 0).to(x.dtype)


dropout.register_shapes(lambda x: "x: [n] [*b], seed: ... -> out: [n] [*b]" if x else "x: , seed: ... -> out:")
dropout.register_fake(lambda x, p, seed, offset: x.new_empty(x.shape))  # no sizes are asked for, as of the mask


# The first dimension may be cut across ranks: each draws the words of the places of its rows.
@dropout.register_sharding("n", arguments=lambda x, offset, start: {"offset": offset + start * x[0].numel()})
def _(out):
    return out


dropout_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "dropout", fallback=dropout.__wrapped__)


@dropout.register_kernel("cpu", name="cpp", layouts={"x": "contiguous"})
def dropout_cpu(x, p, seed, offset) -> Tensor:
    """C++: groups in parallel, 128 counters at a time."""
    require_arguments(x, p, seed, offset)
    return dropout_cpp(x, p, seed, offset)


@triton_kernel
def dropout_groups(x, out, seed, count, first, start,
                   threshold: tl.constexpr, scale: tl.constexpr, groups: tl.constexpr) -> None:  # fmt: skip
    """Draws 4 x 128 words for each group, and drops 512 elements by them; threshold and scale are few in a model."""
    statistic: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    group = (tl.program_id(0).to(tl.int64) * groups + tl.arange(0, groups))[:, None]
    lane = tl.arange(0, 128)[None, :]
    counter = (first + group) * 128 + lane
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    words = tl.philox(tl.load(seed), low, high, low * 0, low * 0)
    factor = tl.full((groups, 128), scale, statistic)
    for word in tl.static_range(4):
        place = group * 512 + word * 128 + lane - start
        inside = (place >= 0) & (place < count)
        values = tl.load(x + place, mask=inside, other=0).to(statistic)
        # No word reaches 2^32: with p = 1 none is kept.
        kept = words[word] >= tl.full((), threshold, tl.uint32) if threshold <= 0xFFFFFFFF else place < 0
        tl.store(out + place, tl.where(kept, values * factor, 0).to(out.dtype.element_ty), mask=inside)


@dropout.register_kernel("cuda", name="triton", layouts={"x": "contiguous"})
def dropout_cuda(x, p, seed, offset) -> Tensor:
    """Triton: some groups for each program, so that 16 bytes are loaded at once; the seed is read on the device."""
    require_arguments(x, p, seed, offset)
    out, (first, start) = x.new_empty(x.shape), divmod(offset, 512)
    if count := x.numel():  # a grid of size 0 is an error
        (size,), warps, _ = launch_of(f"dropout, {x.element_size()} bytes", ELEMENTWISE[::-1])
        choices = *threshold_and_scale(p), size // 512
        dropout_groups[(-(-(start + count) // size),)](x, out, seed, count, first, start, *choices, num_warps=warps)
    return out


# Linear in x, and the mask is symmetric: backward and tangent are the op itself with the same seed. x is not saved.
@dropout.register_grad("x")
def _(grad, p, seed, offset):
    return dropout(grad, p, seed, offset)


dropout.register_jvp(lambda tangent_x, p, seed, offset: dropout(tangent_x, p, seed, offset))


@dropout.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    seed = torch.tensor(0x243F6A8885A308D3, device=make(1).device)
    yield Sample(make(3, 5), 0.5, seed)
    yield Sample(make(2, 3, 173), 0.25, -seed.view(1))  # more than one group, the last not full
    yield Sample(make(3, 173), 0.5, seed, 700)  # from the middle of the second group
    yield Sample(make(4), 0.0, seed)  # all are kept
    yield Sample(make(4), 1.0, seed)  # none is
    yield Sample(make(0, 3), 0.5, seed)
    yield Sample(make(3), 1.5, seed).raises(ValueError, match=r"probability in \[0, 1\], not 1.5")
    yield Sample(make(3), 0.5, seed.float()).raises(ValueError, match="'seed' must be one int64")
    yield Sample(make(3), 0.5, seed.expand(2)).raises(ValueError, match=r"found \(2,\), torch.int64")


if __name__ == "__main__":
    dropout.check()
