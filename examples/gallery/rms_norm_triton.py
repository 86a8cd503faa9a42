"""Triton's kernels of rms_norm, and of the gradients of rms_norm and fused_add_rms_norm: rows stay in registers.

Backward each program takes every so many rows, and sums what they give to the gradient of the weight. Those sums are
added in order afterwards: the result is the same in each run. How many programs there are depends on no device.
"""

from __future__ import annotations

import torch
from launch_choices import Launch, launch_of
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel

FORWARD = (Launch((16,), 0, 1), Launch((32,), 0, 1), Launch((8,), 0, 1))  # elements for each thread
# Programs, elements for each thread, and stages of the loop.
BACKWARD = tuple(
    Launch((programs, elements), 0, stages)
    for programs, elements, stages in (
        (264, 16, 3),
        (264, 16, 2),
        (264, 8, 3),
        (528, 16, 3),
        (528, 16, 1),
        (132, 8, 3),
    )
)
# Bytes of the rows that a loop loads ahead: two programs of Hopper, and one of AMD's GPUs, have that shared memory.
AHEAD = (48 if torch.version.hip else 96) * 1024
WIDEST = 16384  # features of a row that fits into the registers of one program


@triton_kernel
def rms_norm_row(x, weight, out, rstd, features, eps, block: tl.constexpr) -> None:
    """Normalises one row, which fits in one block."""
    row = tl.program_id(0).to(tl.int64)  # row * features may pass 2^31
    place = tl.arange(0, block)
    inside = place < features
    values = tl.load(x + row * features + place, mask=inside, other=0).to(rstd.dtype.element_ty)
    scale = 1 / tl.sqrt(tl.sum(values * values) / features + eps)
    weights = tl.load(weight + place, mask=inside, other=0).to(rstd.dtype.element_ty)
    tl.store(out + row * features + place, (values * scale * weights).to(out.dtype.element_ty), mask=inside)
    tl.store(rstd + row, scale)


def launch(x, weight, eps, out, rstd) -> None:
    """Fills out and rstd: one program for each row."""
    if rows := rstd.numel():  # a grid of size 0 is an error
        block = 1 << max(0, x.shape[-1] - 1).bit_length()
        (elements,), _, _ = launch_of(f"rms_norm, {block} x {x.element_size()} bytes", FORWARD)
        warps = min(16, max(1, block // (32 * elements)))
        rms_norm_row[(rows,)](x, weight, out, rstd, x.shape[-1], eps, block=block, num_warps=warps)


@triton_kernel
def differentiate_rows(
    out_grad, residual_grad, x, weight, rstd, rstd_grad, x_grad, partial, rows, features, programs,
    has_residual: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
) -> None:  # fmt: skip
    """Writes the gradient of x of some rows, and the sum over them of what they give to that of weight."""
    first = tl.program_id(0).to(tl.int64)  # row * features may pass 2^31
    column = tl.arange(0, block)
    inside = column < features
    wide = rstd.dtype.element_ty
    weights = tl.load(weight + column, mask=inside, other=0).to(wide)
    sums = tl.zeros((block,), wide)
    for row in tl.range(first, rows, programs, num_stages=stages):
        place = row * features + column
        grad = tl.load(out_grad + place, mask=inside, other=0).to(wide)
        values = tl.load(x + place, mask=inside, other=0).to(wide)
        scale = tl.load(rstd + row)
        g = grad * weights
        total = tl.sum(g * values) + tl.load(rstd_grad + row)
        result = scale * g - values * (scale * scale * scale * total / features)
        if has_residual:
            result += tl.load(residual_grad + place, mask=inside, other=0).to(wide)
        tl.store(x_grad + place, result.to(x_grad.dtype.element_ty), mask=inside)
        sums += values * scale * grad
    tl.store(partial + first * features + column, sums, mask=inside)


@triton_kernel
def add_partials(partial, total, programs, features, count: tl.constexpr, block: tl.constexpr) -> None:
    """Adds the sums of all programs for some features, in order."""
    row, column = tl.arange(0, count)[:, None], tl.program_id(0) * block + tl.arange(0, block)
    sums = tl.zeros((count, block), partial.dtype.element_ty)
    for first in range(0, programs, count):
        inside = (first + row < programs) & (column < features)[None, :]
        sums += tl.load(partial + (first + row) * features + column[None, :], mask=inside, other=0)
    tl.store(total + column, tl.sum(sums, axis=0).to(total.dtype.element_ty), mask=column < features)


def launch_grads(out_grad, residual_grad, x, weight, rstd, rstd_grad) -> tuple[Tensor, Tensor]:
    """The gradients of x, or of the residual before the call, and of weight."""
    features, rows, wide = x.shape[-1], rstd.numel(), torch.promote_types(x.dtype, torch.float32)
    block = 1 << max(0, features - 1).bit_length()
    kind = f"rms_norm gradients, {block} x {x.element_size()} bytes"
    (most, elements), _, stages = launch_of(kind, BACKWARD)
    stages = min(stages, 1 + AHEAD // (block * x.element_size() * (2 if residual_grad is None else 3)))
    programs = max(1, min(rows, most))
    x_grad, partial = x.new_empty(x.shape), x.new_empty((programs, features), dtype=wide)
    statistics = rstd.to(wide), rstd_grad.to(wide)
    differentiate_rows[(programs,)](
        out_grad, residual_grad, x, weight, *statistics, x_grad, partial, rows, features, programs,
        residual_grad is not None, block, stages, num_warps=min(16, max(1, block // (32 * elements))),
    )  # fmt: skip
    weight_grad = torch.empty_like(weight)
    add_partials[(-(-features // 32),)](partial, weight_grad, programs, features, count=64, block=32, num_warps=8)
    return x_grad, weight_grad


def rms_norm_grad_triton(out_grad, x, weight, rstd, rstd_grad) -> tuple[Tensor, Tensor]:
    """The gradients of rms_norm."""
    return launch_grads(out_grad, None, x, weight, rstd, rstd_grad)


def is_narrow(weight: Tensor) -> bool:
    """Whether a row fits into the registers of a program."""
    return 0 < weight.numel() <= WIDEST
