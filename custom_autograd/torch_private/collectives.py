"""Collectives that autograd, compilers and simulated ranks know.

- `torch.distributed._functional_collectives.all_gather_single_autograd`, which was `all_gather_tensor_autograd` before
  torch 2.13: those of `torch.distributed.nn` cannot be traced, and those of `torch.distributed` have no gradient.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def stack_of_ranks(group: Any, tensor: Tensor) -> Tensor:  # Any: a ProcessGroup
    """Return the tensors of all ranks of a group in a new first dimension; the gradient of each goes to its rank."""
    from torch.distributed import _functional_collectives as collectives  # loaded by whoever has a group

    gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
    stacked: Tensor = gather(tensor.unsqueeze(0).contiguous(), 0, group).view(-1, *tensor.shape)
    return stacked * 1  # its gradient is contiguous, as the collective of torch 2.11 requires, if that of a sum is not
