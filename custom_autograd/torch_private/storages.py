"""Which memory a tensor uses, and what allocators gave out while a function ran.

- `UntypedStorage._cdata`: the identity of a storage; the storages of fake tensors have no address.
- `torch._subclasses`: its tensors (fake, functional) share storages as the tensors that they stand for do; other
  classes with a `__torch_dispatch__` need not.

- `profiler.profile.profiler.kineto_results`: the raw events; the public ones have sums for each operation only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, strided
from torch.profiler import ProfilerActivity, profile

from custom_autograd.torch_private.functions import sparse_parts
from custom_autograd.torch_private.transforms import unwrapped

DISPATCH = "__torch_dispatch__"


def storages_of(tensor: Tensor) -> frozenset[int] | None:
    """Return the identities of the storages that a tensor uses, or None if they cannot be found."""
    # They are valid as long as the tensor is alive.
    tensor = unwrapped(tensor)
    cls = type(tensor)
    if cls is not Tensor:
        if hasattr(cls, "__tensor_flatten__"):
            return _storages_of_parts(tensor)
        # Tensors of torch._subclasses share storages as those that they stand for do; others need not.
        if not owns_memory(cls) and not cls.__module__.startswith("torch._subclasses."):
            return None
    try:
        return frozenset([tensor.untyped_storage()._cdata])
    except (RuntimeError, NotImplementedError):  # sparse and opaque tensors
        return None


def may_share(one: Tensor, other: Tensor) -> bool:
    """Return True unless two tensors surely use other storages."""
    if type(one) is type(other) is Tensor and one.layout is other.layout is strided:
        try:
            return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
        except NotImplementedError:  # a batch has no storage of its own
            one, other = unwrapped(one), unwrapped(other)
    own, its = storages_of(one), storages_of(other)
    return own is None or its is None or not own.isdisjoint(its)


def _storages_of_parts(wrapper: Any) -> frozenset[int] | None:  # Any: `__tensor_flatten__` belongs to its class
    parts = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
    found = [storages_of(part) for part in parts if isinstance(part, Tensor)]
    known = [one for one in found if one is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def owns_memory(cls: type) -> bool:
    """Return True if tensors of a class have memory themselves: those with `__torch_dispatch__` wrap it."""
    return getattr(cls, DISPATCH) is getattr(Tensor, DISPATCH)


def parts_of(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors that hold the memory of a tensor: itself, or what it wraps or consists of."""
    tensor = unwrapped(tensor)
    if hasattr(type(tensor), "__tensor_flatten__"):
        wrapper: Any = tensor  # Any: `__tensor_flatten__` belongs to its class
        parts = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
        return [inner for part in parts if isinstance(part, Tensor) for inner in parts_of(part)]
    return sparse_parts(tensor) or [tensor]


def sizes_of_storages(tensor: Tensor) -> dict[int, int]:
    """Return the number of bytes of each storage that a tensor uses, by its identity; nothing for an opaque tensor."""
    # They are valid as long as the tensor is alive. A size that is symbolic is 0.
    try:
        storages = [part.untyped_storage() for part in parts_of(tensor)]
    except (RuntimeError, NotImplementedError):
        return {}
    return {storage._cdata: plain_size(storage.nbytes()) or 0 for storage in storages}


def shape_of(tensor: Tensor) -> tuple[int | str, ...] | None:
    """Return the shape of a tensor, a symbolic size by its name, or None for a nested tensor that has no shape."""
    if tensor.is_nested and tensor.layout is strided:
        return None
    return tuple([size if isinstance(size, int) else str(size) for size in tensor.shape])


def bytes_of(tensor: Tensor) -> int | None:
    """Return the number of bytes of the elements of a tensor, or None if it is symbolic."""
    return plain_size(sum(part.numel() * part.element_size() for part in parts_of(tensor)))


def plain_size(size: object) -> int | None:
    """Return a size, or None if it is symbolic: to make it a number would add a guard."""
    return size if isinstance(size, int) else None


MEMORY = "[memory]"


def allocations(work: Callable[[], Any]) -> list[int]:
    """Run a function and return bytes in the order of allocations on the CPU; negative if they were given back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        kept = work()
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None  # there is a cycle
    events = [event for event in found.profiler.kineto_results.events() if event.name() == MEMORY]
    events.sort(key=lambda event: event.start_ns())
    del kept
    return [event.nbytes() for event in events]
