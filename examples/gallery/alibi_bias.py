"""Attention with linear biases: what is added to the scores of causal attention. A factory: no tensor goes in.

    bias[h, i, j] = -slope_h · (i - j) for j <= i, else -∞;    slope_h = 2^(-8 (h + 1) / heads), h = 0, 1, ...

Of heads that are not a power of two, the first P = 2^⌊log₂ heads⌋ have the slopes of P heads, the others those that 2P
heads would have at h = 0, 2, 4, ...; so it is in the paper's code.
Shapes: bias: (heads, length, length), for `F.scaled_dot_product_attention(q, k, v, attn_mask=bias)`.
Dtypes: float64, float32, bfloat16, float16; each value is one rounding of a product in float32 or float64.
Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, tl, triton_kernel

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def slopes(heads: int) -> list[float]:
    """How fast each head forgets."""
    power = 1 << (heads.bit_length() - 1) if heads else 0
    first = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return first + [2 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]


# Without tensors the dispatcher cannot know the device: the op goes where the argument named device says.
@custom_op("gallery::alibi_bias", reference=True, shapes="-> output: [heads length length]", dtypes={"output": "dtype"})
def alibi_bias(
    heads: int, length: int, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Tensor:
    """The bias of causal attention, linear in the distance."""
    empty = alibi_bias_fake(heads, length, dtype=dtype, device=device)
    if not length:
        return empty
    place = torch.arange(length, device=device, dtype=torch.promote_types(dtype, torch.float32))
    distance = place - place.unsqueeze(1)  # not positive where attention is allowed
    distance.masked_fill_(distance > 0, -torch.inf)
    steep = torch.tensor(slopes(heads), device=device, dtype=distance.dtype)
    return (steep.view(-1, 1, 1) * distance).to(empty.dtype)


alibi_cpp = cpp_kernel(
    Path(__file__).with_suffix(".cpp"),
    "alibi_bias",
    fallback=lambda steep, out: out.copy_(alibi_bias.__wrapped__(*out.shape[:2], dtype=out.dtype)),
)


@alibi_bias.register_kernel("cpu", name="cpp")
def alibi_bias_cpu(heads, length, *, dtype, device) -> Tensor:
    """C++: one pass, which only writes."""
    out = alibi_bias_fake(heads, length, dtype=dtype, device=device)
    if length:  # or the slopes would be all there is to compute
        alibi_cpp(torch.tensor(slopes(heads), dtype=torch.promote_types(dtype, torch.float32)), out)
    return out


@triton_kernel
def alibi_row(steep, out, length, block: tl.constexpr) -> None:
    """One row of one head, in blocks: no length is too large."""
    row = tl.program_id(0).to(tl.int64)  # row * length may pass 2^31
    head, query = row // length, row % length
    slope = tl.load(steep + head)
    for first in range(0, length, block):
        key = first + tl.arange(0, block)
        value = tl.where(key <= query, slope * (key - query).to(slope.dtype), float("-inf"))
        tl.store(out + row * length + key, value.to(out.dtype.element_ty), mask=key < length)


@alibi_bias.register_kernel("cuda", name="triton")
def alibi_bias_cuda(heads, length, *, dtype, device) -> Tensor:
    """Triton: one program per row."""
    out = alibi_bias_fake(heads, length, dtype=dtype, device=device)
    if out.numel():  # a grid of size 0 is an error
        steep = torch.tensor(slopes(heads), dtype=torch.promote_types(dtype, torch.float32)).to(device)
        block = min(4096, 1 << (length - 1).bit_length())
        alibi_row[(heads * length,)](steep, out, length, block=block)
    return out


@alibi_bias.register_fake
def alibi_bias_fake(heads, length, *, dtype, device) -> Tensor:
    """Contiguous."""
    if heads < 0 or length < 0:
        raise ValueError(f"gallery::alibi_bias: 'heads' and 'length' must be at least 0; found {heads} and {length}")
    if dtype not in DTYPES:
        raise ValueError(f"gallery::alibi_bias: 'dtype' must be one of {', '.join(map(str, DTYPES))}; found {dtype}")
    return torch.empty(heads, length, length, dtype=dtype, device=device)


@alibi_bias.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    device = make(1).device
    for heads, length in ((8, 5), (3, 2), (1, 1), (0, 4), (2, 0)):
        yield Sample(heads, length, device=device)
    yield Sample(12, 19, dtype=torch.bfloat16, device=device)
    yield Sample(2, -1, device=device).raises(ValueError, match="'length' must be at least 0; found 2 and -1")
    yield Sample(2, 2, dtype=torch.int64, device=device).raises(ValueError, match="'dtype' must be one of")


if __name__ == "__main__":
    alibi_bias.check()
