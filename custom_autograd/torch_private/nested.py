"""What jagged nested tensors are made of (found in torch 2.13).

nested._internal.nested_tensor.NestedTensor   the class behind `layout=torch.jagged`, which has no public name; its
                                              constructor is differentiable in no way, its public makers in one only
NestedTensor._values                          the values; `values()` has no second derivative and no forward mode
NestedTensor._ragged_idx                      which dimension is ragged; nothing public says so
NestedTensor._metadata_cache                  lengths that are known already: asking for them again reads all offsets
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor as NestedTensor

from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Raggedness:
    """Layout of the components of a jagged tensor in its values.

    Attributes:
        offsets: where each begins, and where the last one ends.
        lengths: how long each is, where there are holes between them; else None.
        dim: the ragged dimension; the values have no batch dimension, so there it is one less.
        known: what torch remembers about the lengths.
    """

    offsets: Tensor
    lengths: Tensor | None
    dim: int
    known: dict[str, Any]


def raggedness_of(tensor: NestedTensor) -> Raggedness:
    """Return where the components of a jagged tensor lie in its values."""
    given: Any = tensor  # Any: torch annotates none of these
    return Raggedness(given.offsets(), given.lengths(), given._ragged_idx, given._metadata_cache)


def values_of(tensor: NestedTensor) -> Tensor:
    """Return the values, without a history."""
    values: Tensor = tensor._values
    return values.detach()


def make_nested(values: Tensor, like: Raggedness) -> Tensor:
    """Return a jagged tensor that holds these values, without a history."""
    made: Tensor = NestedTensor(
        values.detach(),
        offsets=like.offsets,
        lengths=like.lengths,
        _ragged_idx=like.dim,
        _metadata_cache=dict(like.known),
    )
    return made
