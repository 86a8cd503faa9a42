"""Saves what a rule names by policies: `register_backward(..., saving={"x": offload()})`.

Autograd packs what a node saves with one pair of hooks, in order. So a call of the op opens hooks of its own, and its
forward notes which names are saved, in that order. Below a transform of `torch.func`, which refuses hooks, tensors are
saved as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.policy_types import SavingPolicy
from custom_autograd.torch_private.saved_tensors import Hooks, are_refused, hidden_from_checkpoints, top_hooks
from custom_autograd.torch_private.transforms import is_transforming
from custom_autograd.values.packing import Packed, Who, pack, unpack

Apply = Callable[..., Any]
"""Runs a forward and records its node (Any: takes and returns what the op does)."""


class NamedSaving:
    """The policies of one op, by the names of what its rules save."""

    def __init__(self, declaration: Declaration, policies: Mapping[str, SavingPolicy]) -> None:
        self.policies = policies
        self._op, self._declared = str(declaration.name), declaration.location

    def around(self, apply: Apply) -> Apply:
        """Return an `apply` whose nodes save by these policies; the same one if there are none."""
        if not self.policies:
            return apply

        def apply_by_policies(*args: Any) -> Any:  # Any: as `apply`
            if is_transforming() or are_refused() or _is_off.get() or not torch.is_grad_enabled():
                return apply(*args)
            outer = top_hooks()
            call = SavingCall(self, outer)
            with call, saved_tensors_hooks(hidden_from_checkpoints(call.pack, outer), unpack):
                return apply(*args)

        return apply_by_policies

    def who(self, name: str) -> Who:
        """Return the words for a saved value in messages."""
        return Who(self._op, f"'{name}'", self._declared)


class SavingCall:
    """The hooks of one call, which is in progress while the context is open."""

    def __init__(self, saving: NamedSaving, outer: Hooks | None) -> None:
        self._saving = saving
        self._outer = outer
        self._names: deque[str] = deque()

    def __enter__(self) -> None:
        self._token = _innermost.set(self)

    def __exit__(self, *_: object) -> None:
        _innermost.reset(self._token)

    def note(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Note what the node saves, in order: tensors, lists of tensors, or None for what is not needed."""
        for name, value in zip(names, values, strict=True):
            tensors = value if isinstance(value, (list, tuple)) else [value]
            self._names += [name for tensor in tensors if tensor is not None]

    def pack(self, tensor: Tensor) -> Packed:
        """Pack the next saved tensor; what a kernel itself records before that belongs to no name."""
        if not self._names:
            return pack(tensor, (), self._outer, Who())
        name = self._names.popleft()
        policy = self._saving.policies.get(name)
        return pack(tensor, () if policy is None else (policy,), self._outer, self._saving.who(name))


@contextmanager
def without_policies() -> Iterator[None]:
    """Save what rules name as it is, while the context is open."""
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


def note_saved(names: Sequence[str], values: Sequence[Any]) -> None:  # Any: as in `Call.note`
    """Note what the node of the innermost call in progress saves; nothing if that call has no policies."""
    call = _innermost.get()
    if call is not None:
        call.note(names, values)


_is_off: ContextVar[bool] = ContextVar("is_off", default=False)
_innermost: ContextVar[SavingCall | None] = ContextVar("innermost", default=None)
