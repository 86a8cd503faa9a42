"""Whether two tensors have elements at the same address, exactly, from their strides.

An element of `one` lies at `offset + Σ i_k s_k`, an element of `other` at `offset' + Σ j_k t_k`. They are the same if
`Σ i_k s_k - Σ j_k t_k` can be the difference of the offsets. The sum is taken apart stride by stride, the largest
first: what is left for the smaller strides has to be within their reach, so that few values are tried for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private import storages, transforms
from custom_autograd.values.tensors import tensors_in

MOST_STEPS = 10_000
"""After so many values the tensors are taken to overlap; slices, transposes and strided views need a few dozen."""


def refuse_overlap(declaration: Declaration, inputs: Mapping[str, Any]) -> None:
    """Raise if a mutated tensor overlaps another argument of a call that autograd or a transform records.

    The node takes each argument for a value of its own, so that gradients and tangents would be wrong.

    Args:
        declaration: of the op.
        inputs: every tensor, list of tensors or None that was given, by argument.
    """
    mutated = {argument.name for argument in declaration.schema.mutated_arguments}
    given = [
        (name, f"'{name}[{index}]'" if isinstance(value, (list, tuple)) else f"'{name}'", tensor)
        for name, value in inputs.items()
        for index, tensor in enumerate(tensors_in([value]))
    ]
    for (name, label, tensor), (other_name, other_label, other) in itertools.combinations(given, 2):
        if (name in mutated or other_name in mutated) and do_overlap(tensor, other):
            written, read = (label, other_label) if name in mutated else (other_label, label)
            raise GradientError(
                str(declaration.name),
                f"{written} is mutated and shares memory with {read}, and derivatives of the call would be wrong",
                declared=declaration.location,
                do="pass a copy of one of them, or call the op under torch.no_grad()",
            )


def do_overlap(one: Tensor, other: Tensor) -> bool:
    """Return True if the tensors have an element in common; False if that cannot be found out.

    Args:
        one: any shape, any strides; also a wrapper of a transform.
        other: the same.
    """
    if one is other:
        return one.numel() > 0 if _has_numbers(one) else True
    one, other = transforms.unwrapped(one), transforms.unwrapped(other)
    mine, theirs = storages.storages_of(one), storages.storages_of(other)
    if not mine or not theirs or mine.isdisjoint(theirs):
        return False
    if not _has_numbers(one) or not _has_numbers(other):
        return one is other
    if not one.numel() or not other.numel():
        return False
    if one.element_size() != other.element_size():
        return True
    difference = int(other.storage_offset() - one.storage_offset())
    return _can_reach(difference, _ranges(one, other))


def _has_numbers(tensor: Tensor) -> bool:
    """Return True if sizes and strides are numbers: symbols of a trace must not be compared."""
    if tensor.layout != torch.strided:
        return False
    facts = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(type(fact) is int for fact in facts)


def _ranges(one: Tensor, other: Tensor) -> list[tuple[int, int, int]]:
    """Return (stride, lowest, highest factor) by stride, the largest first."""
    found: dict[int, tuple[int, int]] = {}
    for tensor, sign in ((one, 1), (other, -1)):
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
            low, high = found.get(stride, (0, 0))
            factor = sign * (size - 1)
            found[stride] = (low + min(factor, 0), high + max(factor, 0))
    return sorted(((stride, *reach) for stride, reach in found.items() if stride), reverse=True)


def _can_reach(target: int, ranges: Sequence[tuple[int, int, int]]) -> bool:
    """Return True if factors within their ranges, times their strides, can sum to the target."""
    inner = _inner(ranges)
    steps, stack = 0, [(0, target)]
    while stack and steps < MOST_STEPS:
        steps += 1
        level, left = stack.pop()
        divisor = inner[level][2]
        if left % divisor if divisor else left:
            continue
        if level == len(ranges):
            return True
        stride, lowest, highest = ranges[level]
        low, high, _ = inner[level + 1]
        first, last = max(lowest, -((high - left) // stride)), min(highest, (left - low) // stride)
        stack += [(level + 1, left - stride * factor) for factor in range(first, last + 1)]
    return bool(stack)


def _inner(ranges: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the lowest sum, the highest sum and the greatest divisor of each range and all that follow it."""
    found = [(0, 0, 0)]
    for stride, lowest, highest in reversed(ranges):
        low, high, divisor = found[-1]
        found.append((low + stride * lowest, high + stride * highest, math.gcd(divisor, stride)))
    return found[::-1]
