"""Collectives that autograd, compilers and simulated ranks know, and several ranks played by one process.

- `torch.distributed._functional_collectives.all_gather_single_autograd`, which was `all_gather_tensor_autograd` before
  torch 2.13: those of `torch.distributed.nn` cannot be traced, and those of `torch.distributed` have no gradient.

- `torch.distributed._local_tensor.LocalTensorMode`, `LocalTensor` with `_local_tensors`, and `local_tensor_mode`:
  DTensors of several ranks in one process; each operation runs once for each rank. `maybe_disable_local_tensor_mode`
  leaves the mode.
- `torch.testing._internal.distributed.fake_pg.FakeStore`: a process group whose collectives do nothing; the mode
  replaces them by what they mean.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, distributed


def stack_of_ranks(group: Any, tensor: Tensor) -> Tensor:  # Any: a ProcessGroup
    """Return the tensors of all ranks of a group in a new first dimension; the gradient of each goes to its rank."""
    from torch.distributed import _functional_collectives as collectives  # loaded by whoever has a group

    gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
    stacked: Tensor = gather(tensor.unsqueeze(0).contiguous(), 0, group).view(-1, *tensor.shape)
    return stacked * 1  # its gradient is contiguous, as the collective of torch 2.11 requires, if that of a sum is not


def why_not() -> str | None:
    """Return why ranks cannot be played here; None if they can."""
    if not distributed.is_available():
        return "torch is built without distributed"
    if importlib.util.find_spec("torch.distributed._local_tensor") is None:
        return "this torch cannot play several ranks in one process (LocalTensorMode)"
    if distributed.is_initialized():
        return "this process is a rank of a process group"
    return None


@contextmanager
def played(*sizes: int) -> Iterator[Any]:
    """Play the ranks of a mesh of these sizes, and return it (Any: DeviceMesh)."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    count = torch.Size(sizes).numel()
    distributed.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", sizes)
        with LocalTensorMode(count):
            yield mesh
    finally:
        distributed.destroy_process_group()


def one() -> AbstractContextManager[object]:
    """Run operations once within, where ranks are played."""
    if importlib.util.find_spec("torch.distributed._local_tensor") is None:
        return nullcontext()
    from torch.distributed._local_tensor import maybe_disable_local_tensor_mode

    return cast("AbstractContextManager[object]", maybe_disable_local_tensor_mode())


def on_all_ranks(local: Tensor, count: int) -> Tensor:
    """Return what each rank has of a tensor: one that is the same on all is a plain tensor where ranks are played."""
    if importlib.util.find_spec("torch.distributed._local_tensor") is None:
        return local
    from torch.distributed._local_tensor import LocalTensor, local_tensor_mode

    if local_tensor_mode() is None or isinstance(local, LocalTensor):
        return local
    made: Tensor = LocalTensor({rank: local.clone() for rank in range(count)})
    return made


def whole(tensor: Any) -> Tensor:
    """Return a DTensor (Any) as one tensor, which is that of the first rank where ranks are played."""
    if not hasattr(tensor, "full_tensor"):
        return _of_first_rank(tensor)
    joined = _joined(tensor)
    if joined is None or joined.shape != tensor.shape:
        return _of_first_rank(tensor.full_tensor())
    return joined


def _joined(tensor: Any) -> Tensor | None:
    """Return the slices of played ranks in one tensor, as `full_tensor` does in more calls; None if they are not."""
    from torch.distributed.tensor import Shard

    with torch.no_grad():
        local = getattr(tensor.to_local(), "_local_tensors", None)
    if local is None or len(tensor.placements) != 1:
        return None
    (placement,), slices = tensor.placements, [local[rank].detach() for rank in sorted(local)]
    with one():
        if type(placement) is Shard:  # another class of shards interleaves them
            return torch.cat(slices, placement.dim)
        if placement.is_partial("sum"):
            return torch.stack(slices).sum(0)
        return slices[0] if placement.is_replicate() else None


def _of_first_rank(tensor: Any) -> Tensor:
    local = getattr(tensor, "_local_tensors", None)
    made: Tensor = (tensor if local is None else local[0]).detach()
    return made


def is_unplayable(error: BaseException) -> bool:
    """Return True if an operation cannot run on slices whose sizes differ between the ranks that are played."""
    return any(text in str(error) for text in UNPLAYABLE)


UNPLAYABLE = (
    "LocalIntNode",
    "'torch._C._SymNode' object has no attribute",
    "SymIntArrayRef expected to contain only concrete integers",
    "unhashable type: non-nested SymInt",
    "Unable to cast Python instance of type <class 'torch.SymInt'>",  # torch 2.11: the position of a rank
)
"""What torch raises for a size that is one number for each rank."""
