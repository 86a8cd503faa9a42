"""Derivatives and batches of a call by torch's transforms; each has a simple way to compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

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


BATCH = 9
"""Above 8, so that no kernel takes it for a vector."""


def _mapped(dims: Callable[[int, Sequence[Tensor]], int | None], text: str) -> Way:
    """Return a way that batches inputs: `dims` gives the in_dim of each, and None for one that is not batched."""

    def batched(target: Target, call: Call) -> tuple[list[Tensor], list[int | None]]:
        tensors = [x.detach() for x in call.sample.tensors()]
        at = [dims(i, tensors) for i in range(len(tensors))]
        given = [x if dim is None else _stacked(x, dim) for x, dim in zip(tensors, at, strict=True)]
        return given, at

    def values(target: Target, function: Function, call: Call) -> Callable[..., tuple[Tensor, ...]]:
        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(begin_on(target, function, replace(call, needs=frozenset()), tensors).values.values())

        return one

    def make(target: Target, call: Call) -> Iterator[Outcome]:
        given, at = batched(target, call)
        if call.shared is not None or all(dim is None for dim in at) or target.written_positions(call.sample):
            raise UnfitError
        with torch.no_grad():
            found = torch.vmap(values(target, target.call, call), in_dims=tuple(at))(*given)
        yield {f"batched result {i}": y for i, y in enumerate(found)}

    def loop(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
        del only
        given, at = batched(target, call)
        one, pairs = values(target, function, call), list(zip(given, at, strict=True))
        with torch.no_grad():
            rows = [one(*(x if dim is None else x.select(dim, k) for x, dim in pairs)) for k in range(BATCH)]
        return {f"batched result {i}": torch.stack(list(ys)) for i, ys in enumerate(zip(*rows, strict=True))}

    return Way(text, make, loop, has_gradients=False)


def _stacked(tensor: Tensor, dim: int) -> Tensor:
    """Return a batch of a tensor, each one a little smaller; integers stay."""
    scales = [1 - 0.05 * step if can_have_gradient(tensor) else 1 for step in range(BATCH)]
    return torch.stack([tensor * scale if scale != 1 else tensor for scale in scales], dim)


def _at(position: int, dim: int) -> Callable[[int, Sequence[Tensor]], int | None]:
    return lambda i, tensors: min(dim, tensors[i].dim()) if i == position else None


TRANSFORM_WAYS: tuple[Way, ...] = (
    Way("jvp", _tangents, _plain_tangents, is_derivative=True),
    Way("second derivative", _second_derivatives, _second, is_derivative=True),
    _mapped(lambda i, tensors: 0, "vmap over all"),
    _mapped(_at(0, 0), "vmap over the first tensor"),
    _mapped(_at(1, 0), "vmap over the second tensor"),
    _mapped(_at(2, 0), "vmap over the third tensor"),
    _mapped(_at(0, 1), "vmap over the first tensor at dimension 1"),
    _mapped(_at(1, 1), "vmap over the second tensor at dimension 1"),
)
