"""Change how cotangents lie in memory, how large they are, and which results have one."""

import torch
from torch import Tensor

from custom_autograd.verification.calls import layouts
from custom_autograd.verification.calls.call import Cotangent


def _expanded_along(dim: int) -> tuple[str, Cotangent]:
    """Return a cotangent of stride 0 along one dimension, as a sum over it sends."""

    def expand(u: Tensor, position: int) -> Tensor:
        del position
        return u.narrow(dim, 0, min(1, u.shape[dim])).expand_as(u) if u.dim() > dim else u

    return f"a cotangent expanded along dimension {dim}, as sum({dim}) sends", expand


def _without(left_out: int) -> tuple[str, Cotangent]:
    return f"no cotangent of result {left_out}", lambda u, position: None if position == left_out else u


COTANGENT_CHANGES: tuple[tuple[str, Cotangent], ...] = (
    ("a cotangent 1000 times as large", lambda u, _: u * 1024),
    ("an expanded cotangent, as sum() sends", lambda u, _: u.new_full((), 1.25).expand(u.shape)),
    *(_expanded_along(dim) for dim in range(4)),
    ("a transposed cotangent", lambda u, _: layouts.transposed(u) if u.dim() > 1 else u),
    ("a cotangent whose rows lie apart", lambda u, _: layouts.rows_apart(u)),
    ("a cotangent with a step of 2", lambda u, _: layouts.sliced(u) if u.dim() else u),
    ("a cotangent that begins inside its memory", lambda u, _: layouts.offset(u)),
    ("a lazily conjugated cotangent", lambda u, _: layouts.conjugated(u) if u.is_complex() else u),
    ("a lazily negated cotangent", lambda u, _: u if layouts.negated(u) is None else layouts.negated(u)),
    ("a cotangent of the first result alone", lambda u, position: None if position else u),
    *(_without(position) for position in range(3)),
    ("a cotangent of zeros", lambda u, _: torch.zeros_like(u)),
)
"""The first is dense, so that a backward that writes to it shows as that."""
