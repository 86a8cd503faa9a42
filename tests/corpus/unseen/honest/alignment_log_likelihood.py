"""The log-likelihood of a label sequence over all monotonic alignments with the frames, as in CTC without blanks.

The kernel computes the posteriors of the labels as a hidden output; they are the gradient. They have no derivative of
their own, so a second derivative raises.
"""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_alignment(log_probs: Tensor, labels: Tensor) -> None:
    frames, states = log_probs.shape[0], labels.shape[0]
    if not 0 < states <= frames:
        raise ValueError(f"'labels' must have between 1 and {frames} elements, found {states}")


@custom_op("unseen::alignment_log_likelihood", outputs=("total", "posterior"), hidden=("posterior",))
def op(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    require_alignment(log_probs, labels)
    frames, states = log_probs.shape[0], labels.shape[0]
    emitted = log_probs.numpy()[:, labels.numpy()].astype(np.float64)
    alpha, beta = np.full((2, frames, states), -np.inf)
    alpha[0, 0], beta[-1, -1] = emitted[0, 0], 0
    for t in range(1, frames):
        arriving = np.concatenate(([-np.inf], alpha[t - 1, :-1]))
        alpha[t] = np.logaddexp(alpha[t - 1], arriving) + emitted[t]
    for t in reversed(range(frames - 1)):
        staying = beta[t + 1] + emitted[t + 1]
        beta[t] = np.logaddexp(staying, np.concatenate((staying[1:], [-np.inf])))
    posterior = np.zeros(log_probs.shape)
    np.add.at(posterior, (slice(None), labels.numpy()), np.exp(alpha + beta - alpha[-1, -1]))
    return tuple(torch.as_tensor(value, dtype=log_probs.dtype) for value in (alpha[-1, -1], posterior))


@op.register_fake
def _(log_probs, labels):
    require_alignment(log_probs, labels)
    return log_probs.new_empty(()), log_probs.new_empty(log_probs.shape)


@op.register_backward
def _(grad_total, posterior):
    return {"log_probs": grad_total * posterior}


@op.register_samples
def _(make):
    yield Sample(make(6, 4), make.tensor([0, 3, 1]))
    yield Sample(make(4, 3), make.tensor([2, 2]))
    yield Sample(make(2, 3), make.tensor([0, 1, 2])).raises(ValueError, match="between 1 and 2")
