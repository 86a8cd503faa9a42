"""Calls on tensor subclasses and under modes, of torch functions and of dispatch, which see an op as one op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from custom_autograd.execution.composition import find_composition
from custom_autograd.torch_private.dispatch import is_taken_apart
from custom_autograd.torch_private.verification import Watch, Wrapped, name_of_overload
from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    UnfitError,
    Way,
    WrongError,
    begin_on,
    cotangents_of,
    leaves_of,
)
from custom_autograd.verification.harness.base import find_refusal, first_line
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import why_not_own_op


@dataclass(frozen=True, slots=True)
class _Look:
    """A mode, what makes the tensors of a call, and the names of the ops that they see; None if they do not look."""

    mode: AbstractContextManager[object] = field(default_factory=contextlib.nullcontext)
    wrap: Callable[[Tensor], Tensor] = lambda tensor: tensor
    seen: list[str] | None = None


class _Labelled(Tensor):
    """A subclass that does nothing of its own in __torch_function__."""


class _PassThrough(TorchFunctionMode):
    """A mode that calls what it is given."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return func(*args, **(kwargs or {}))


def _dispatch_mode(seen: list[str]) -> _Look:
    return _Look(Watch(lambda overload, args, kwargs, found: seen.append(name_of_overload(overload))), seen=seen)


def _looked_at(kind: Callable[[list[str]], _Look], target: Target, call: Call) -> Iterator[Outcome]:
    """Call on tensors of a kind, or under a mode; a registered op takes every tensor, and is seen once."""
    look = kind([])
    tensors = call.sample.tensors()
    is_sparse = not call.needs and any(x.layout != torch.strided for x in tensors)
    if call.shared is not None or is_sparse or not tensors:  # nothing to look at
        raise UnfitError
    try:
        with look.mode:
            outcome, seen = _run(look, target, call)
    except Exception as error:
        refusal = find_refusal(error, is_optional=True)
        if refusal is None and why_not_own_op(target) is not None:  # such code may want plain tensors
            refusal = f"it raises {first_line(error)}"
        if refusal is None:
            raise
        raise UnfitError(refusal) from error
    yield outcome
    if look.seen is not None:
        _require_once(target, seen)


def _run(look: _Look, target: Target, call: Call) -> tuple[Outcome, list[str]]:
    """Return outputs and gradients, unwrapped, with the names of the ops that the forward was made of."""
    leaves = leaves_of(call)
    wrapped = call.needs or set(range(len(leaves))) - target.written_positions(call.sample)
    for position in wrapped:
        leaves[position] = look.wrap(leaves[position].detach()).requires_grad_(position in call.needs)
    before = len(look.seen or ())  # making the leaves has been seen as well
    begun = begin_on(target, target.call, call, leaves)
    seen = list(look.seen or ())[before:]
    cotangents = {name: None if u is None else look.wrap(u) for name, u in cotangents_of(call, begun).items()}
    found = {**begun.detached(), **begun.backward(cotangents)}
    return {name: y.held if isinstance(y, Wrapped) else y.as_subclass(Tensor) for name, y in found.items()}, seen


def _require_once(target: Target, seen: Sequence[str]) -> None:
    """Raise if an op did not come by under its own name, once; what is decomposed by design never does."""
    overload, record = target.overload, record_of(target)
    is_made_of_others = record is not None and find_composition(record) is not None
    if overload is None or why_not_own_op(target) is not None or is_made_of_others or is_taken_apart(overload.name()):
        return
    name = name_of_overload(overload)
    times = seen.count(name)
    if times != 1:
        others = ", ".join(dict.fromkeys(other for other in seen if other != name)) or "nothing"
        raise WrongError(
            f"the op '{name}' is seen {times} times in one call, expected once; beside it, {others}",
            "the call goes round the dispatcher, or an autograd kernel calls the op again",
        )


SUBCLASSES: tuple[Way, ...] = tuple(
    Way(text, partial(_looked_at, kind), cause="it takes plain tensors for granted")
    for text, kind in (
        ("with a TorchDispatchMode", _dispatch_mode),
        ("with a TorchFunctionMode", lambda seen: _Look(_PassThrough())),
        ("with a subclass with __torch_function__", lambda seen: _Look(wrap=lambda x: x.as_subclass(_Labelled))),
        ("with a wrapper with __torch_dispatch__", lambda seen: _Look(wrap=lambda x: Wrapped(x, seen), seen=seen)),
    )
)
