"""Whether two tensors share memory, for kernels that write to one of them while they read the other.

Tensors share none where one begins behind the other, and where they interleave: both repeat with one period, which is
a stride, and within a period one ends before the other begins. So lie the halves of one table of keys and values.
What interleaves in no such way is taken to share memory, also where it does not: to decide that is NP-hard.
"""

from __future__ import annotations

from torch import Tensor


def are_apart(one: Tensor, other: Tensor) -> bool:
    """Whether no byte is known to be in both; under vmap no address is known."""
    if not one.numel() or not other.numel():
        return True
    try:
        distance = other.data_ptr() - one.data_ptr()
    except RuntimeError:
        return True
    steps = [stride * tensor.element_size() for tensor in (one, other) for stride in tensor.stride() if stride]
    return any(reach(one, step) <= distance % step <= step - reach(other, step) for step in (1 << 62, *steps))


def reach(tensor: Tensor, period: int) -> int:
    """The bytes of a period from the first element to behind the last; too many where the tensor has another period."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    steps = [(size - 1, stride * tensor.element_size()) for size, stride in sizes if size > 1]
    if any(step >= period and step % period for _, step in steps):
        return period + 1
    return sum(count * step for count, step in steps if step < period) + tensor.element_size()
