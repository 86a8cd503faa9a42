"""Small questions about tensors that rules must not have to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.metadata import Metadata, WrapperMetadata, is_wrapper, metadata_of
from custom_autograd.torch_private import functions
from custom_autograd.torch_private.placements import is_placed

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def plain(value: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Resolve lazy conjugation and negation, so that user code sees the memory it reads.

    While Dynamo traces a backward there is no memory to be read, and the question itself cannot be traced.
    """
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
    """Return the same memory as tensors that are not views of others, in lists and tuples too.

    A tangent cannot be laid out as a tensor whose elements share memory: of such a tensor it is a copy.
    """
    if isinstance(values, (list, tuple)):
        return [without_bases(value) for value in values]
    if not isinstance(values, Tensor) or not functions.is_view(values):
        return values
    return values.clone(memory_format=torch.contiguous_format) if 0 in values.stride() else values.data


def known(value: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else
    """Return metadata of a tensor, a list of it for a list, None for what is not a tensor."""
    if isinstance(value, Tensor):
        return metadata_of(value)
    if isinstance(value, (list, tuple)):
        return [known(item) for item in value]
    return None


def zeros_of(metadata: Metadata, like: Tensor | None) -> Tensor:
    """Return zeros for an undefined gradient: of the kind of the result that it is the gradient of.

    Args:
        metadata: of the result whose gradient is undefined.
        like: a defined gradient of the same node, for the class of tensors that keep no record of their kind.
    """
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


def materialize(gradient: Any, metadata: Any, like: Tensor | None) -> Any:  # Any: as in `known`
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
