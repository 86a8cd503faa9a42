"""Cross entropy of x · weightᵀ + bias against integer labels, in chunks of rows: the table of logits is never whole.

    loss_n = lse_n - logits[n, labels_n],    logits = x weightᵀ + bias,    lse_n = log Σ_v exp(logits[n, v])

Dtypes: float64, float32, bfloat16, float16, that of x for weight and bias too; labels int64; loss float64 or float32.
The gradient of a chunk's logits takes their place, and is multiplied into hidden gradients that backward scales.
Sums over chunks are float32. float16 is computed and kept in float32: a loss is scaled too late for what has become 0.
Second derivatives come from the reference, with whole logits. The mean over ignored rows only is NaN, its gradient 0.
Source: Hsu et al. 2024, "Liger Kernel", section 3.2; Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary LMs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel

NAME, GRADIENTS = "gallery::fused_linear_cross_entropy", ("x_grad", "weight_grad", "bias_grad")


def losses_and_gradient(logits: Tensor, labels: Tensor, count: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the gradient of their sum / count, in PyTorch operations."""
    kept = labels != ignore_index
    target = labels.where(kept, 0).unsqueeze(1)
    logarithms = logits.to(count.dtype).log_softmax(-1)
    losses = torch.where(kept, -logarithms.gather(1, target).squeeze(1), 0)
    one_hot = torch.zeros_like(logarithms).scatter(1, target, 1)
    return losses, ((logarithms.exp() - one_hot) / count.clamp(min=1)).where(kept.unsqueeze(1), 0)


@custom_op(NAME, outputs=("loss", *GRADIENTS), hidden=GRADIENTS, reference=True)
def fused_linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean", with_x_grad: bool = True, with_weight_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Cross entropy of a linear layer; what gradients are not computed with the loss are computed in backward."""
    loss, *empty = outputs(x, weight, labels, bias, ignore_index, reduction, with_x_grad, with_weight_grad)
    count = ((labels != ignore_index).sum() if reduction == "mean" else labels.new_ones(())).to(loss.dtype)
    wide_x, wide_weight = x.to(count.dtype), weight.to(count.dtype)
    logits = F.linear(wide_x, wide_weight, None if bias is None else bias.to(count.dtype))
    losses, logits_grad = losses_and_gradient(logits, labels, count, ignore_index)
    x_grad = logits_grad @ wide_weight if with_x_grad else empty[0]
    weight_grad = logits_grad.T @ wide_x if with_weight_grad else empty[1]
    bias_grad = logits_grad.sum(0) if bias is not None and with_weight_grad else empty[2]
    return losses.sum() / count, *(g.to(e.dtype) for g, e in zip((x_grad, weight_grad, bias_grad), empty, strict=True))


@fused_linear_cross_entropy.register_shapes(dtypes={"loss": "wide"})
def _(bias, reduction, with_x_grad, with_weight_grad):
    inputs = f"x: {'[n]' if reduction == 'mean' else 'n'} [i], weight: [c i], labels: n, bias?: [c]"
    x_grad, weight_grad = "n i" if with_x_grad else "0", "c i" if with_weight_grad else "0"
    bias_grad = "c" if with_weight_grad and bias is not None else "0"
    return f"{inputs} -> loss: , x_grad: {x_grad}, weight_grad: {weight_grad}, bias_grad: {bias_grad}"


def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, **rest) -> Tensor:  # noqa: ANN003
    """The op, told which gradients are wanted; rest is ignore_index and reduction."""
    of_x, *others = (t is not None and t.requires_grad and torch.is_grad_enabled() for t in (x, weight, bias))
    return fused_linear_cross_entropy(x, weight, labels, bias, **rest, with_x_grad=of_x, with_weight_grad=any(others))


@fused_linear_cross_entropy.register_fake
def outputs(x, weight, labels, bias, ignore_index, reduction, with_x_grad, with_weight_grad) -> tuple[Tensor, ...]:
    """A gradient that is not wanted has no elements."""
    found = [t.dtype for t in (labels, x, weight, bias) if t is not None]
    if labels.dtype != torch.int64 or not x.is_floating_point() or len(set(found)) != 2:
        raise ValueError(f"{NAME}: 'labels' must be int64, and the other tensors of one real dtype; found {found}")
    kept = torch.float32 if x.dtype == torch.float16 else x.dtype
    wanted = ((x, with_x_grad), (weight, with_weight_grad), (bias, with_weight_grad))
    loss = x.new_empty((), dtype=torch.promote_types(x.dtype, torch.float32))
    return loss, *(x.new_empty(t.shape if want and t is not None else 0, dtype=kept) for t, want in wanted)


def chunked(
    kernel, x, weight, labels, bias, ignore_index, reduction, with_x_grad, with_weight_grad
) -> tuple[Tensor, ...]:
    """On any device: kernel returns the losses of a chunk, and puts the logits' gradient in their place."""
    loss, x_grad, *others = outputs(x, weight, labels, bias, ignore_index, reduction, with_x_grad, with_weight_grad)
    x, weight, bias = (tensor if tensor is None else tensor.to(x_grad.dtype) for tensor in (x, weight, bias))
    count = ((labels != ignore_index).sum() if reduction == "mean" else labels.new_ones(())).to(loss.dtype)
    loss, weight_sum, bias_sum = (torch.zeros_like(tensor, dtype=loss.dtype) for tensor in (loss, *others))
    size = max(256, x.numel() // max(1, weight.shape[0]))  # logits as many as x has elements; rows for a fast product
    for first in range(0, x.shape[0], size):
        rows = slice(first, first + size)
        logits = F.linear(x[rows], weight, bias)
        loss += kernel(logits, labels[rows], count, ignore_index, with_x_grad or with_weight_grad).sum()
        if with_x_grad:
            torch.mm(logits, weight, out=x_grad[rows])
        if with_weight_grad:  # in blocks: a product in low precision is widened before it is added
            for total, part in zip(weight_sum.split(8192), logits.T.split(8192), strict=True):
                total.addmm_(part, x[rows]) if total.dtype == part.dtype else total.add_(part @ x[rows])
        if bias_sum.numel():
            bias_sum += logits.sum(0, dtype=loss.dtype)
        del logits  # before the next, and before the sums are narrowed
    return loss / count, x_grad, weight_sum.to(x.dtype), bias_sum.to(x.dtype)


def rows_in_place(logits, labels, count, ignore_index, with_grad) -> Tensor:
    """What the C++ does, in PyTorch operations."""
    losses, logits_grad = losses_and_gradient(logits, labels, count, ignore_index)
    if with_grad:
        logits.copy_(logits_grad)
    return losses


rows_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "rows_in_place", fallback=rows_in_place)
kernels = (("cpu", "cpp", partial(chunked, rows_cpp)), ("cuda", "chunked", partial(chunked, rows_in_place)))
for device_type, name, kernel in kernels:
    fused_linear_cross_entropy.register_kernel(device_type, kernel, name=name, layouts={"labels": "contiguous"})
    fused_linear_cross_entropy.register_autocast(device_type, "lower")  # as F.linear


@fused_linear_cross_entropy.register_backward
def _(
    grad, x, weight, labels, bias, ignore_index, reduction,
    with_x_grad, with_weight_grad, x_grad, weight_grad, bias_grad, needs,
):  # fmt: skip
    of_weight = needs.weight or needs.bias
    if needs.x > with_x_grad or of_weight > with_weight_grad:
        arguments = (x, weight, labels, bias, ignore_index, reduction, needs.x, of_weight)
        _, x_grad, weight_grad, bias_grad = fused_linear_cross_entropy.overload(*arguments)
    return {
        "x": lambda: (grad * x_grad).to(x.dtype),
        "weight": lambda: (grad * weight_grad).to(weight.dtype),
        "bias": lambda: None if bias is None else (grad * bias_grad).to(bias.dtype),
    }


@fused_linear_cross_entropy.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    labels = partial(torch.tensor, dtype=torch.int64, device=make(1).device)
    yield Sample(make(3, 4), make(5, 4), labels([0, 4, 3]))
    yield Sample(make(3, 2), make(19, 2), labels([18, -100, 0]), make(19), reduction="sum")  # a bias, an ignored row
    yield Sample(make(2, 3), make(4, 3), labels([1, 2]), with_x_grad=False, with_weight_grad=False)  # in backward
    yield Sample(make(1, 1), make(1, 1), labels([0]))  # one class: loss and gradient are zero
    yield Sample(make(0, 3), make(5, 3), labels([]), reduction="sum")  # no rows
    yield Sample(make(2, 3), make(4, 2), labels([1, 2])).raises(ValueError, match="'weight' must be .c i. with i = 3")
    yield Sample(make(1, 3), make(4, 3), labels([4])).raises(RuntimeError, match="label 4 is neither", on="cpu")


if __name__ == "__main__":
    fused_linear_cross_entropy.check()
