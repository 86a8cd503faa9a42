"""Triton's kernels of softmax_cross_entropy: one program for each row forward, one for each part of a row backward."""

from __future__ import annotations

import torch
from launch_choices import Launch, launch_of
from torch import Tensor

from custom_autograd.kernels import tl, triton_kernel

FORWARD = (Launch((4096,), 4, 1), Launch((8192,), 8, 1), Launch((16384,), 16, 1), Launch((4096,), 8, 2))
BACKWARD = (Launch((4096,), 8, 1), Launch((2048,), 4, 1), Launch((8192,), 8, 1), Launch((1024,), 4, 1))


@triton_kernel
def row_loss(logits, labels, losses, lse, classes, ignore_index, block: tl.constexpr) -> None:
    """The loss of one row, and the logarithm of its sum of exponentials."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * classes
    statistic = lse.dtype.element_ty
    # Running maximum and sum, so that a block may be smaller than a row: no vocabulary is too large.
    largest = tl.full((), float("-inf"), statistic)
    total = tl.zeros((block,), statistic)
    for first in range(0, classes, block):
        place = first + tl.arange(0, block)
        values = tl.load(start + place, mask=place < classes, other=float("-inf")).to(statistic)
        larger = tl.maximum(largest, tl.max(values))
        shift = tl.where(tl.abs(larger) == float("inf"), 0.0, larger)  # inf - inf is NaN
        total = total * tl.where(largest == larger, 1.0, tl.exp(largest - shift)) + tl.exp(values - shift)
        largest = larger
    row_lse = tl.where(tl.abs(largest) == float("inf"), 0.0, largest) + tl.log(tl.sum(total))
    label = tl.load(labels + row)
    # Raising would make the host wait for the device: a label out of range reads nothing, and its loss is NaN.
    picked = tl.load(start + label, mask=(label >= 0) & (label < classes), other=float("nan")).to(statistic)
    tl.store(losses + row, tl.where(label == ignore_index, 0.0, row_lse - picked))
    tl.store(lse + row, row_lse)


def launch_losses(logits, labels, losses, lse, ignore_index) -> None:
    """Fills the losses and the lse of all rows."""
    rows, classes = logits.shape
    (most,), warps, stages = launch_of(f"cross entropy, {logits.element_size()} bytes", FORWARD)
    if rows:  # a grid of size 0 is an error
        block = min(most, 1 << max(0, classes - 1).bit_length())
        arguments = logits, labels, losses, lse, classes, ignore_index
        row_loss[(rows,)](*arguments, block=block, num_warps=warps, num_stages=stages)


@triton_kernel
def row_grad(
    grad_loss, grad_lse, logits, labels, lse, kept, logits_grad, classes, blocks, loss_stride, ignore_index,
    has_grad_lse: tl.constexpr, is_mean: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """The softmax of a part of a row times its gradients of loss and lse, minus that of loss at the row's label."""
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks
    place = program % blocks * block + tl.arange(0, block)
    inside = place < classes
    statistic: tl.constexpr = tl.float64 if logits.dtype.element_ty == tl.float64 else tl.float32
    label = tl.load(labels + row)
    on_label = tl.load(grad_loss + row * loss_stride).to(statistic)
    if is_mean:
        on_label /= tl.maximum(tl.load(kept), 1).to(statistic)
    on_label = tl.where(label == ignore_index, 0.0, on_label)
    on_softmax = on_label
    if has_grad_lse:
        on_softmax += tl.load(grad_lse + row).to(statistic)
    values = tl.load(logits + row * classes + place, mask=inside, other=0).to(statistic)
    softmax = tl.exp(values - tl.load(lse + row).to(statistic)) * on_softmax
    softmax -= tl.where(place == label, on_label, 0.0)
    tl.store(logits_grad + row * classes + place, softmax.to(logits_grad.dtype.element_ty), mask=inside)


def cross_entropy_grad_triton(grad_loss, grad_lse, logits, labels, lse, ignore_index, reduction) -> Tensor:
    """One pass: each logit is read once, and its gradient written once."""
    (rows, classes), grad, labels = logits.shape, logits.new_empty(logits.shape), labels.long()
    (most,), warps, _ = launch_of(f"cross entropy gradients, {logits.element_size()} bytes", BACKWARD)
    block = min(most, 1 << max(0, classes - 1).bit_length())
    blocks = -(-classes // block)
    kept = (labels != ignore_index).sum() if reduction == "mean" else labels
    if rows * classes:  # a grid of size 0 is an error
        tensors = grad_loss, grad_lse, logits, labels, lse, kept, grad
        choices = grad_lse is not None, reduction == "mean", block
        row_grad[(rows * blocks,)](
            *tensors, classes, blocks, int(grad_loss.dim() > 0), ignore_index, *choices, num_warps=warps
        )
    return grad


def losses_and_lse(logits: Tensor) -> tuple[Tensor, Tensor]:
    """New tensors for both, in the dtype of sums."""
    statistic = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty(len(logits), dtype=statistic), logits.new_empty(len(logits), dtype=statistic)
