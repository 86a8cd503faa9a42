"""Small questions about tensors that rules must not have to ask, and whether two have elements in common."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.core.metadata import Metadata, WrapperMetadata, is_wrapper
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private import functions, storages, transforms
from custom_autograd.torch_private.placements import is_placed

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def plain(value: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Resolve lazy conjugation and negation, so that user code sees the memory it reads."""
    # While Dynamo traces a backward there is no memory to be read, and the question itself cannot be traced.
    if torch.compiler.is_dynamo_compiling():
        return value
    if isinstance(value, Tensor):
        if value.is_conj() or value.is_neg():
            return value.resolve_conj().resolve_neg()
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
        return [plain(item) for item in value]
    return value


def without_bases(values: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Return the same memory as tensors that are not views of others, in lists and tuples too."""
    # A tangent cannot be laid out as a tensor whose elements share memory: of such a tensor it is a copy.
    if isinstance(values, (list, tuple)):
        return [without_bases(value) for value in values]
    if not isinstance(values, Tensor) or not functions.is_view(values):
        return values
    return values.clone(memory_format=torch.contiguous_format) if 0 in values.stride() else values.data


def zeros_of(metadata: Metadata, like: Tensor | None) -> Tensor:
    """Return zeros for an undefined gradient: of the kind of the result that it is the gradient of."""
    if isinstance(metadata, WrapperMetadata):
        return _wrapped_zeros(metadata)
    if metadata.layout in SPARSE:
        return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device, layout=metadata.layout)
    if like is None or is_wrapper(like) or like.layout is not torch.strided:
        return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)
    return like.new_zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def _wrapped_zeros(metadata: WrapperMetadata) -> Tensor:
    parts = {name: zeros_of(one, None) if isinstance(one, Metadata) else one for name, one in metadata.parts.items()}
    made: Tensor = metadata.cls.__tensor_unflatten__(parts, metadata.context, metadata.shape, metadata.strides)
    return made.detach()  # some note in their context that they required a gradient


def materialize(gradient: Any, metadata: Any, like: Tensor | None) -> Any:  # Any: as in `plain`
    """Return zeros in place of undefined gradients, where the result is a tensor that can have one."""
    if isinstance(metadata, list):
        gradients = [None] * len(metadata) if gradient is None else gradient
        return [materialize(one, one_known, like) for one, one_known in zip(gradients, metadata, strict=True)]
    if gradient is not None or metadata is None:
        return gradient
    return zeros_of(metadata, like)


def filled(tangent: Any, result: Any) -> Any:  # Any: tensors, lists of tensors, or values that have no tangent
    """Return zeros in place of a tangent that is None, which autograd refuses for a floating-point result."""
    if isinstance(result, (list, tuple)):
        tangents = [None] * len(result) if tangent is None else tangent
        return [filled(one, its) for one, its in zip(tangents, result, strict=True)]
    if tangent is None and isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex()):
        return torch.zeros_like(result)
    return tangent


def first_tensor(values: Any) -> Tensor | None:  # Any: gradients, with lists among them
    """Return the first tensor there is, looking into lists."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, (list, tuple)):
            found = first_tensor(value)
            if found is not None:
                return found
    return None


def is_wanted(need: Any) -> bool:  # Any: a bool or a list of bools
    """Return True if a gradient is wanted, of any element of a list."""
    return any(need) if isinstance(need, (list, tuple)) else bool(need)


def tensors_in(values: Sequence[Any]) -> list[Tensor]:  # Any: tensors, lists of tensors, or None
    """Return the tensors among values, looking into lists."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:  # Any: as above
    """Return a value with a function of each of its tensors in place of that, looking into lists."""
    if isinstance(value, (list, tuple)):
        return [mapped(function, one) for one in value]
    return function(value) if isinstance(value, Tensor) else value


def placed_in(values: Sequence[Any]) -> list[Any]:  # Any: as above; DTensors
    """Return the DTensors among values, looking into lists."""
    return [tensor for tensor in tensors_in(values) if is_placed(tensor)]


def any_floating(values: Sequence[Any]) -> bool:  # Any: tensors, lists of tensors, or None
    """Return True if a tensor among the values can carry a gradient."""
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in(values))


def are_odd(value: Any) -> bool:  # Any: a tensor, a list of tensors, or None
    """Return True if a tensor of a result is not a plain strided one."""
    return any(type(one) is not Tensor or one.layout is not torch.strided for one in tensors_in([value]))


def all_floating(values: Sequence[Any]) -> bool:  # Any: as above
    """Return True if every tensor among the values can carry a gradient."""
    return all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in(values))


def copies(values: Sequence[Any]) -> list[Any]:  # Any: tensors, lists of tensors, or None
    """Copy of what an op is about to write to."""
    return [
        copies(value) if isinstance(value, (list, tuple)) else None if value is None else value.clone()
        for value in values
    ]


def overwrite(given: Sequence[Any], values: Sequence[Any]) -> None:  # Any: as in `copies`
    """Write results back over the arguments they replace."""
    for old, new in zip(given, values, strict=True):
        if isinstance(old, (list, tuple)):
            overwrite(old, new)
        elif old is not None:
            old.copy_(new)


# Whether two tensors have elements at the same address, exactly, from their strides.
#
# An element of `one` lies at `offset + Σ i_k s_k`, an element of `other` at `offset' + Σ j_k t_k`. They are the same if
# `Σ i_k s_k - Σ j_k t_k` can be the difference of the offsets. The sum is taken apart stride by stride, the largest
# first: what is left for the smaller strides has to be within their reach, so that few values are tried for each.


MOST_STEPS = 10_000
"""After so many values the tensors are taken to overlap; slices, transposes and strided views need a few dozen."""


def refuse_overlap(declaration: Declaration, inputs: Mapping[str, Any]) -> None:
    """Raise if a mutated tensor overlaps another argument of a call that autograd or a transform records."""
    # The node takes each argument for a value of its own, so that gradients and tangents would be wrong.
    mutated = {argument.name for argument in declaration.schema.mutated_arguments}
    given = [
        (name, f"'{name}[{index}]'" if isinstance(value, (list, tuple)) else f"'{name}'", tensor)
        for name, value in inputs.items()
        for index, tensor in enumerate(tensors_in([value]))
    ]
    for (name, label, tensor), (other_name, other_label, other) in itertools.combinations(given, 2):
        if (name in mutated or other_name in mutated) and do_overlap(tensor, other):
            written, read = (label, other_label) if name in mutated else (other_label, label)
            raise declaration.error(
                GradientError,
                f"{written} is mutated and shares memory with {read}, and derivatives of the call would be wrong",
                do="pass a copy of one of them, or call the op under torch.no_grad()",
            )


def do_overlap(one: Tensor, other: Tensor) -> bool:
    """Return True if the tensors have an element in common; False if that cannot be found out."""
    if one is other:
        return one.numel() > 0 if _has_numbers(one) else True
    one, other = transforms.unwrapped(one), transforms.unwrapped(other)
    mine, theirs = storages.storages_of(one), storages.storages_of(other)
    if not mine or not theirs or mine.isdisjoint(theirs):
        return False
    if not _has_numbers(one) or not _has_numbers(other):
        return one is other
    return _have_common_elements(one, other)


def may_overlap(one: Tensor, other: Tensor) -> bool:
    """Return True if the tensors have an element in common, or that cannot be found out."""
    # A trace with symbolic sizes holds for these sizes only after it, if the tensors have one storage.
    if not storages.may_share(one, other):
        return False
    is_strided = one.layout is other.layout is torch.strided
    return not is_strided or _have_common_elements(one, other)


def _have_common_elements(one: Tensor, other: Tensor) -> bool:
    """Return True if strided tensors with one storage have an element in common."""
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
        for stride, size in zip(map(int, tensor.stride()), map(int, tensor.shape), strict=True):
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
