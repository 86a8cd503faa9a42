"""Cross entropy of logits against integer labels, fused with the softmax: no table of probabilities is ever stored.

    loss_n = lse_n - logits[n, labels_n],    lse_n = log Σ_v exp(logits[n, v])

Dtypes: logits float64, float32, bfloat16, float16; labels of any integer dtype; loss float64 for float64, else float32.
"mean" divides by the number of rows that are not ignored; over none it is NaN, with gradient zero, as in PyTorch.
Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; gradient: softmax minus one-hot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from softmax_cross_entropy_triton import cross_entropy_grad_triton, launch_losses, losses_and_lse
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


def whole(labels: Tensor) -> Tensor:
    """Labels of any integer dtype in int64, in which they are indices and no `ignore_index` wraps around."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"gallery::softmax_cross_entropy: 'labels' must be integers, found {labels.dtype}")
    return labels.long()


def reduce(losses: Tensor, labels: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """One loss from the rows' losses, or the rows' losses."""
    total = losses if reduction == "none" else losses.sum()
    return total / (labels != ignore_index).sum() if reduction == "mean" else total


@custom_op("gallery::softmax_cross_entropy", outputs=("loss", "lse"), hidden=("lse",), reference=True)
def softmax_cross_entropy(
    logits: Tensor, labels: Tensor, ignore_index: int = -100, reduction: Literal["mean", "sum", "none"] = "mean"
) -> tuple[Tensor, Tensor]:
    """Cross entropy of logits against integer labels."""
    wide, labels = logits.contiguous().to(torch.promote_types(logits.dtype, torch.float32)), whole(labels)
    lse, kept = wide.logsumexp(-1), labels != ignore_index
    picked = wide.gather(1, labels.where(kept, 0).unsqueeze(1)).squeeze(1)
    return reduce(torch.where(kept, lse - picked, 0), labels, ignore_index, reduction), lse


# The gradient is the largest tensor of all: one pass in C++, and differentiable, as an op of its own with a reference.
@custom_op("gallery::cross_entropy_grad", outputs=("logits_grad",), reference=True)
def cross_entropy_grad(
    grad_loss: Tensor, grad_lse: Tensor | None, logits: Tensor, labels: Tensor, lse: Tensor, ignore_index: int,
    reduction: Literal["mean", "sum", "none"],
) -> Tensor:  # fmt: skip
    """The softmax of each row times its gradients of loss and lse, minus that of loss at the row's label."""
    wide, labels = logits.contiguous().to(torch.promote_types(logits.dtype, torch.float32)), whole(labels)
    kept = labels != ignore_index
    # At least 1: where all rows are ignored, 0 · (1 / 0) would be NaN in the next derivative.
    per_row = grad_loss / kept.sum().clamp(min=1) if reduction == "mean" else grad_loss
    on_label = torch.where(kept, per_row, 0)
    on_softmax = on_label if grad_lse is None else on_label + grad_lse
    softmax = torch.exp(wide - lse.unsqueeze(1)) * on_softmax.unsqueeze(1)
    at_labels = -on_label.unsqueeze(1).to(softmax.dtype)
    return softmax.scatter_add(1, labels.where(kept, 0).unsqueeze(1), at_labels).to(logits.dtype)


@softmax_cross_entropy.register_shapes(dtypes={"loss": "wide", "lse": "wide"})
def _(reduction):
    n, loss = "[n]" if reduction == "mean" else "n", "n" if reduction == "none" else ""
    return f"logits: {n} [c], labels: n -> loss: {loss}, lse: n"


@cross_entropy_grad.register_shapes(dtypes={"logits_grad": "logits"})
def _(reduction):
    n, loss = "[n]" if reduction == "mean" else "n", "n" if reduction == "none" else ""
    return f"grad_loss: {loss}, grad_lse?: n, logits: {n} [c], labels: n, lse: n -> logits_grad: n [c]"


SOURCE = Path(__file__).with_suffix(".cpp")
REDUCTIONS = ("mean", "sum", "none")  # as the C++ numbers them
forward_cpp, backward_cpp = cpp_kernel(SOURCE, "cross_entropy"), cpp_kernel(SOURCE, "cross_entropy_grad")


@softmax_cross_entropy.register_kernel("cpu", name="cpp", layouts="contiguous")
def softmax_cross_entropy_cpp(logits, labels, ignore_index, reduction) -> tuple[Tensor, Tensor]:
    """Looks at every label first: none is ever an address out of bounds."""
    return forward_cpp(logits, whole(labels), ignore_index, REDUCTIONS.index(reduction))


@cross_entropy_grad.register_kernel("cpu", name="cpp", layouts="contiguous")
def _(grad_loss, grad_lse, logits, labels, lse, ignore_index, reduction):
    return backward_cpp(grad_loss, grad_lse, logits, whole(labels), lse, ignore_index, REDUCTIONS.index(reduction))


@softmax_cross_entropy.register_kernel("cuda", name="triton", layouts="contiguous")
def softmax_cross_entropy_triton(logits, labels, ignore_index, reduction) -> tuple[Tensor, Tensor]:
    """Triton: one program for each row, which reads its logits once."""
    losses, lse = losses_and_lse(logits)
    launch_losses(logits, whole(labels), losses, lse, ignore_index)
    return reduce(losses, labels, ignore_index, reduction), lse


cross_entropy_grad.register_kernel("cuda", cross_entropy_grad_triton, name="triton", layouts="contiguous")


# lse is saved and depends on the logits, with the softmax as its gradient: in a second backward its share joins here.
@softmax_cross_entropy.register_grad("logits")
def _(grad_loss, logits, labels, lse, ignore_index, reduction, grad_lse=None):
    return cross_entropy_grad(grad_loss, grad_lse, logits, labels, lse, ignore_index, reduction)


@softmax_cross_entropy.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    labels = partial(torch.tensor, dtype=torch.int64, device=make(1).device)
    yield Sample(make(4, 7), labels([0, 6, 3, 3]))
    yield Sample(make(3, 19), labels([18, -100, 0]), reduction="sum")  # an ignored row
    yield Sample(make(3, 33), labels([32, 5, 1]), ignore_index=5, reduction="none")  # an ignored class
    yield Sample(make(1, 1), labels([0]))  # one class: loss and gradient are zero
    yield Sample(make(0, 5), labels([]), reduction="sum")  # no rows


@cross_entropy_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    labels = torch.tensor([18, -100, 0], device=make(1).device)
    yield Sample(make(), make(3), make(3, 19), labels, make(3), -100, "mean")
    yield Sample(make(3), None, make(3, 19), labels.clamp(min=1), make(3), 1, "none")


if __name__ == "__main__":
    cross_entropy_grad.check()
    softmax_cross_entropy.check()
