"""A vocabulary that is cut across ranks: import this file beside softmax_cross_entropy, and no rank has a whole row.

    lse = log Σ_ranks exp(lse_rank),    logits[n, labels_n] from the one rank among whose classes labels_n is

Each rank ignores the labels of the others; the losses and lse of its slice of the classes are all that it sends.
"""

from __future__ import annotations

import torch
from softmax_cross_entropy import reduce, softmax_cross_entropy, whole
from torch import Tensor


def is_own(labels: Tensor, start: int, size: int, count: int) -> Tensor:
    """Where the label is among the classes of this rank."""
    return (labels >= start) & (labels < start + -(-size // count))


def arguments_of_rank(labels, ignore_index, start, size, count) -> dict[str, object]:
    """The labels counted from the first class of this rank, those of other ranks ignored; a loss for each row."""
    labels = whole(labels)
    is_kept = is_own(labels, start, size, count) & (labels != ignore_index)
    # -1 is no class, whatever `ignore_index` is: a shifted label may be equal to that.
    return {"labels": torch.where(is_kept, labels - start, -1), "ignore_index": -1, "reduction": "none"}


@softmax_cross_entropy.register_sharding("c", arguments=arguments_of_rank)
def _(loss, lse, labels, ignore_index, reduction, gather, start, size, count) -> dict[str, Tensor]:
    """The sum of exponentials of all ranks, and the logit at the label from the rank that has it."""
    labels = whole(labels)
    is_kept = labels != ignore_index
    picked = torch.where(is_own(labels, start, size, count) & is_kept, lse - loss, 0)
    each_lse, each_picked = gather(torch.stack((lse, picked), -1)).unbind(-1)
    whole_lse = each_lse.logsumexp(0)
    # A label out of range is of no rank: its loss is NaN, as on a GPU.
    at_labels = each_picked.sum(0).where((labels >= 0) & (labels < size), torch.nan)
    losses = torch.where(is_kept, whole_lse - at_labels, 0)
    return {"loss": reduce(losses, labels, ignore_index, reduction), "lse": whole_lse}


if __name__ == "__main__":
    softmax_cross_entropy.check()
