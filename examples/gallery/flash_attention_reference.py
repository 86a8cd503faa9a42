"""Attention and its gradients in PyTorch operations, with all scores in memory: what the tiled kernels are checked by.

flash_attention.py and flash_attention_varlen.py declare their ops by it. Scores have the dtype that sums are kept in;
keys and values are repeated for the heads that share them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from custom_autograd import CustomOp, Sample

DENSE, PACKED = ("batch", "heads", "length", "features"), ("rows", "heads", "features")


def check(op: str, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dims: tuple[str, ...] = DENSE) -> None:
    """Raises a ValueError that says which argument does not fit the others."""
    for holds, text in requirements(q, k, v, bias, dims):
        if not holds:
            tensors = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
            found = ", ".join(f"{name} {str(t.dtype)[6:]}{list(t.shape)}" for name, t in tensors.items())
            raise ValueError(f"{op}: {text}; found {found}")


def requirements(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dims: tuple[str, ...]
) -> Iterator[tuple[bool, str]]:
    """What must hold, in order: each may rely on those before it."""
    yield q.dim() == k.dim() == v.dim() == len(dims), f"'q', 'k' and 'v' must be ({', '.join(dims)})"
    yield q.dtype == k.dtype == v.dtype and q.is_floating_point(), "'q', 'k' and 'v' must have one floating dtype"
    yield q.device == k.device == v.device, "'q', 'k' and 'v' must be on one device"
    yield q.shape[-1] == k.shape[-1], "'k' must have as many features as 'q'"
    yield k.shape[:-1] == v.shape[:-1], "'k' and 'v' may differ in their last dimension only"
    yield dims == PACKED or q.shape[0] == k.shape[0], "'k' must have the batch of 'q'"
    divides = q.shape[1] % k.shape[1] == 0 if k.shape[1] != 0 else q.shape[1] == 0
    yield divides, "the number of heads of 'k' must divide that of 'q'"
    if bias is not None:
        yield bias.dtype == q.dtype and bias.device == q.device, "'bias' must have the dtype and the device of 'q'"
        yield bias.dim() <= 4, "'bias' must have at most 4 dimensions"
        full = (*q.shape[:3], k.shape[2])[4 - bias.dim() :]
        fits = all(size in (1, wanted) for size, wanted in zip(bias.shape, full, strict=True))
        yield fits, "'bias' must broadcast to (batch, heads, queries, keys)"


def check_grads(
    op: str,
    out_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lse: Tensor,
    delta: Tensor,
    dims: tuple[str, ...] = DENSE,
) -> None:
    """The same for what a backward is given."""
    check(op, q, k, v, bias, dims)
    rows = (q.shape[1], q.shape[0]) if dims == PACKED else q.shape[:-1]
    if out_grad.shape != (*q.shape[:-1], v.shape[-1]) or out_grad.dtype != q.dtype:
        found = f"{out_grad.dtype} {list(out_grad.shape)}"
        raise ValueError(f"{op}: 'out_grad' must have the shape of the output, and its dtype; found {found}")
    sums = torch.promote_types(q.dtype, torch.float32)
    for name, tensor in (("lse", lse), ("delta", delta)):
        if tensor.shape != rows or tensor.dtype != sums:
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise ValueError(f"{op}: '{name}' must be {sums} {list(rows)}, a number per query; found {found}")


def scale_of(q: Tensor, scale: float | None) -> float:
    """The given scale, or 1 / √features."""
    return max(1, q.shape[-1]) ** -0.5 if scale is None else scale


def fits_triton(q: Tensor, v: Tensor) -> bool:
    """Whether the Triton kernels take it: tiles of 256 features in float32 fill the shared memory of a GPU."""
    return q.dtype != torch.float64 and q.shape[-1] <= 256 and v.shape[-1] <= 256


def wide(tensor: Tensor) -> Tensor:
    """In the dtype that sums are kept in."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def repeated(tensor: Tensor, q: Tensor) -> Tensor:
    """Keys or values, once for each of the heads of q that share them."""
    return wide(tensor).repeat_interleave(q.shape[1] // max(1, tensor.shape[1]), 1)


def summed(grad: Tensor, tensor: Tensor) -> Tensor:
    """The gradient of what was repeated: the sum over the heads that share it."""
    shared = grad.unflatten(1, (tensor.shape[1], grad.shape[1] // max(1, tensor.shape[1])))
    return shared.sum(2).to(tensor.dtype)


def scores_of(q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None, *, causal: bool) -> Tensor:
    """All scores; minus infinity where a query does not see a key."""
    scores = wide(q) @ repeated(k, q).mT * scale_of(q, scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~seen.tril(k.shape[2] - q.shape[2]), -torch.inf)
    return scores


def attend(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of the scores times the values, and per query the logarithm of the sum of exponentials."""
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    finite = scores.masked_fill(nothing, 0)  # the softmax of minus infinities is NaN, and so are its derivatives
    weights = finite.softmax(-1).masked_fill(nothing, 0)
    return weights @ values, finite.logsumexp(-1).masked_fill(nothing.squeeze(-1), -torch.inf)


def delta_of(out_grad: Tensor, out: Tensor, lse_grad: Tensor) -> Tensor:
    """Per query, what the gradient of each of its scores loses because its weights sum to 1."""
    return (wide(out_grad) * out).sum(-1) - lse_grad


def score_grads(scores: Tensor, values: Tensor, out_grad: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax again, from lse, and the gradient of the scores."""
    shift = lse.masked_fill(lse == -torch.inf, torch.inf)  # where nothing is seen every weight is 0
    weights = torch.exp(scores - shift.unsqueeze(-1))
    return weights, weights * (wide(out_grad) @ values.mT - delta.unsqueeze(-1))


def gradients(
    scores: Tensor, out_grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, delta: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v: (batch, heads, length, features)."""
    weights, grads = score_grads(scores, repeated(v, q), out_grad, lse, delta)
    q_grad = (grads @ repeated(k, q) * scale).to(q.dtype)
    k_grad = summed(grads.mT @ wide(q) * scale, k)
    return q_grad, k_grad, summed(weights.mT @ wide(out_grad), v)


def accepting(sample: Sample, op: CustomOp) -> Sample:
    """Packed: the reference multiplies with zero weights between sequences, and 0 · nan is nan; kernels meet none."""
    if sample.tensors()[0].device.type not in op.kernels:  # the reference is compared with itself
        return sample
    return sample.xfail("special_values", reason="the reference carries NaN from one sequence to another")
