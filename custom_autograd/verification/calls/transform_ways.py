"""Derivatives of a call by torch's transforms; each has a simple way to compute the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.verification.calls.batches import BATCHES
from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    UnfitError,
    Way,
    begin,
    begin_on,
    cotangents_of,
    numbers_like,
)
from custom_autograd.verification.harness.differentiable import can_have_gradient, gradients
from custom_autograd.verification.harness.targets import Function, Target


def _tangent_of(x: Tensor, name: str) -> Tensor:
    return numbers_like(x, f"tangent of {name}")


def _tangents(target: Target, call: Call) -> Iterator[Outcome]:
    """Give the tangent of each result along a direction of all inputs that need a gradient."""
    tensors = [x.detach() for x in call.sample.tensors()]
    if call.shared is not None or any(0 in tensors[i].stride() for i in call.needs):  # torch has no such dual tensors
        raise UnfitError
    with forward_ad.dual_level():
        for position in call.needs:
            x = tensors[position]
            tensors[position] = forward_ad.make_dual(x, _tangent_of(x, str(position)))
        begun = begin_on(target, target.call, call, tensors)
        pairs = [(name, forward_ad.unpack_dual(y).tangent) for name, y in begun.values.items() if can_have_gradient(y)]
        found = {f"tangent of {name}": tangent.detach().clone() for name, tangent in pairs if tangent is not None}
    yield found


def _plain_tangents(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
    """Give the tangents by two backwards: of <u, y> for u, along the direction."""
    del only
    begun = begin(target, function, call)
    rows = list(zip(sorted(call.needs), begun.leaves.values(), strict=True))
    found = {}
    for name in begun.able():
        y = begun.values[name]
        u = torch.zeros_like(y, requires_grad=True)
        grads = gradients([y], [x for _, x in rows], [u], create_graph=True)
        directions = [_tangent_of(x, str(i)) for i, x in rows]
        (tangent,) = gradients(grads, [u], directions, retain_graph=True)
        found[f"tangent of {name}"] = tangent.detach()
    return found


def _second(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
    """Give the gradient of <gradients, v>."""
    begun = begin(target, function, call)
    first = begun.backward(cotangents_of(call, begun, only or None), create_graph=True)
    directions = [numbers_like(g, f"second {name}") for name, g in first.items()]
    grads = gradients(list(first.values()), list(begun.leaves.values()), directions)
    return {f"second {name}": g.detach() for name, g in zip(begun.leaves, grads, strict=True)}


def _second_derivatives(target: Target, call: Call) -> Iterator[Outcome]:
    yield _second(target, target.call, call, ())


TRANSFORM_WAYS: tuple[Way, ...] = (
    Way("jvp", _tangents, _plain_tangents, is_derivative=True),
    Way("second derivative", _second_derivatives, _second, is_derivative=True),
    *BATCHES,
)
